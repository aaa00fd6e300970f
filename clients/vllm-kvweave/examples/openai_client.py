"""Ask kvweave to put a prompt in place, and vLLM to go on with it, by OpenAI's client.

    KVWEAVE_BASE_URL=http://localhost:8000 KVWEAVE_API_KEY=kvw_… VLLM_BASE_URL=http://localhost:8001/v1 \\
        python openai_client.py "Which animal does Halio keep?"
"""

import os
import sys

import httpx
from openai import OpenAI


def main(question: str) -> None:
    key = {"Authorization": f"Bearer {os.environ['KVWEAVE_API_KEY']}"}
    response = httpx.post(f"{os.environ['KVWEAVE_BASE_URL']}/v1/fuse", json={"question": question}, headers=key)
    response.raise_for_status()
    fused = response.json()
    vllm = OpenAI(base_url=os.environ["VLLM_BASE_URL"], api_key=os.environ.get("VLLM_API_KEY", "none"))
    [model] = vllm.models.list().data
    stream = vllm.completions.create(
        model=model.id,
        prompt=fused["ids"],
        max_tokens=200,
        temperature=0,
        stream=True,
        extra_body={"cache_salt": fused["salt"], "kv_transfer_params": fused["kv_transfer_params"]},
    )
    for chunk in stream:
        print("".join(choice.text for choice in chunk.choices), end="", flush=True)
    print()
    for source in fused["sources"]:
        print(f"  {source['title']}: {source['text'][:60]}")


if __name__ == "__main__":
    main(sys.argv[1])
