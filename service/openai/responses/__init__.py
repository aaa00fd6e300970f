"""OpenAI's responses, another form of chats. Computes nothing, and asks the pipeline by way of a chat's body."""
