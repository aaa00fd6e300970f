"""Chains that hand documents over, and not their text. Made of langchain-core alone."""

from operator import itemgetter
from typing import Any, Final, cast

from langchain_core.language_models import LanguageModelLike
from langchain_core.output_parsers import BaseOutputParser, StrOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from typing_extensions import TypeVar

from langchain_kvweave.documents import joined

CONTEXT: Final = "context"
QUESTION: Final = "input"
ANSWER: Final = "answer"

Values = dict[str, Any]  # of a chain, by their names
Formatted = TypeVar("Formatted")
Parsed = TypeVar("Parsed", default=str)


def documents_chain(
    llm: LanguageModelLike,
    prompt: BasePromptTemplate[Formatted],
    *,
    output_parser: BaseOutputParser[Parsed] | None = None,
    documents: str = CONTEXT,
) -> Runnable[Values, Parsed]:
    """Answers from the documents under this name of the input.

    They stand where the prompt says: at `{context}`, as text that the service recognises; or, where the prompt has no
    such place, before the last message, by their chunk ids. Their KV is reused either way.
    """
    parser = cast("BaseOutputParser[Parsed]", output_parser or StrOutputParser())
    if documents in prompt.input_variables:
        text = itemgetter(documents) | RunnableLambda(joined)
        return RunnablePassthrough.assign(**{documents: text}) | prompt | llm | parser

    def handing_over(values: Values) -> Runnable[Values, Parsed]:
        return prompt | llm.bind(documents=values[documents]) | parser

    return RunnableLambda(handing_over)


def retrieval_chain(retriever: RetrieverLike, answering: Runnable[Values, object]) -> Runnable[Values, Values]:
    """Looks up `input`, puts what it finds under `context`, and what `answering` makes of all that under `answer`."""
    found = itemgetter(QUESTION) | retriever
    return RunnablePassthrough.assign(**{CONTEXT: found}).assign(**{ANSWER: answering})
