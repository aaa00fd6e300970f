"""Mails to Markdown inside a child process: who wrote when to whom, and what. Knows no file."""

from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default

from retriever.readers.decode import decode
from retriever.readers.parse_html import markdown_of
from retriever.readers.reading import UnreadableFile
from retriever.readers.serve import Findings, clean, one_line

_TOLD = ("From", "To", "Cc", "Date")


def parse(content: bytes) -> Findings:
    """The plain text, else the page. Attachments are named, and nothing linked is opened."""
    mail = message_from_bytes(content, EmailMessage, policy=default)
    said = {name: one_line(str(mail[name])) for name in (*_TOLD, "Subject") if mail[name]}
    if not said:
        raise UnreadableFile("it has none of a mail's headers: save it from the mail program as .eml")
    subject = said.pop("Subject", "")
    attached = ", ".join(filter(None, (one_line(each.get_filename() or "") for each in mail.iter_attachments())))
    head = [f"{name}: {value}" for name, value in said.items()] + ([f"Attachments: {attached}"] if attached else [])
    text, problems = _body(mail)
    pages = [f"# {subject}" if subject else "", "  \n".join(head), text]
    return Findings(("\n\n".join(filter(None, pages)),), problems, title=subject, author=said.get("From", ""))


def _body(mail: EmailMessage) -> tuple[str, list[str]]:
    body = mail.get_body(("plain", "html"))
    if body is None:
        return "", []
    content = body.get_payload(decode=True)
    try:
        text = decode(content if isinstance(content, bytes) else b"", declared=body.get_content_charset(""))
    except UnreadableFile as error:
        return "", [str(error)]
    return (
        markdown_of(text) if body.get_content_subtype() == "html" else (clean(text).replace("\r\n", "\n").strip(), [])
    )
