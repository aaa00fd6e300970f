// OpenAI's official client for Node, unchanged, against a service: its base URL and key come by OPENAI_BASE_URL and
// OPENAI_API_KEY, the address of its module as the argument. Prints one JSON object of what it was told.
const { default: OpenAI, toFile } = await import(process.argv[2]);

const client = new OpenAI({ maxRetries: 0 });
const model = "default";
const question = "Which animal does Halio keep?";
const messages = [{ role: "user", content: `Halio keeps a badger.\n\nQuestion: ${question}` }];
const parameters = { type: "object", properties: { days: { enum: [1, 2] } }, required: ["days"], additionalProperties: false };
const described = { name: "get_weather", description: "The weather.", parameters, strict: true };
const told = {};

const chat = await client.chat.completions.create({ model, messages, temperature: 0 });
told.chat = chat.choices[0].message.content;
told.chatStreamed = "";
const chunks = await client.chat.completions.create({ model, messages, temperature: 0, stream: true });
for await (const chunk of chunks) told.chatStreamed += chunk.choices[0]?.delta?.content ?? "";

const calling = { model, messages, max_tokens: 200, tools: [{ type: "function", function: described }], tool_choice: "required" };
const called = await client.chat.completions.create({ ...calling, parallel_tool_calls: false });
told.called = called.choices[0].message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);

const asked = { model, input: messages, temperature: 0 };
const response = await client.responses.create(asked);
told.response = response.output_text;
const stream = client.responses.stream(asked);
told.responseStreamed = "";
stream.on("response.output_text.delta", (event) => { told.responseStreamed += event.delta; });
told.responseFinal = (await stream.finalResponse()).output_text;
told.retrieved = (await client.responses.retrieve(response.id)).output_text;

const tools = [{ type: "function", ...described }];
const first = await client.responses.create({ ...asked, tools, tool_choice: "required", parallel_tool_calls: false });
const [call] = first.output;
told.responseCalled = [call.type, call.name, JSON.parse(call.arguments)];
const output = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
const next = { model, tools, tool_choice: "none", max_output_tokens: 4, previous_response_id: first.id, input: [output] };
told.wentOn = (await client.responses.create(next)).output[0].type;

told.completion = (await client.completions.create({ model, prompt: "Halio keeps a", max_tokens: 4 })).usage.completion_tokens;
told.models = (await client.models.list()).data.length;
told.embedded = (await client.embeddings.create({ model, input: ["a badger"] })).data[0].embedding.length;

const store = await client.vectorStores.create({ name: "node" });
const file = await toFile(Buffer.from("Halio keeps a badger in K7."), "halio.txt");
told.file = (await client.vectorStores.files.uploadAndPoll(store.id, file, { pollIntervalMs: 50 })).status;
told.found = (await client.vectorStores.search(store.id, { query: question })).data[0].content[0].text;
const searched = await client.responses.create({
  model, input: question, temperature: 0, tools: [{ type: "file_search", vector_store_ids: [store.id] }],
});
told.searched = searched.output.map((item) => item.type);
told.deleted = (await client.vectorStores.delete(store.id)).deleted;

console.log(JSON.stringify(told));
