"""Mails to Markdown inside a child process: who wrote when to whom, and what. Knows no file."""

from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage, MIMEPart
from email.policy import default

from retriever.readers.decode import decode
from retriever.readers.parse_html import markdown_of
from retriever.readers.reading import UnreadableFile
from retriever.readers.serve import Findings, clean, one_line

_TOLD = ("From", "To", "Cc", "Date")
_TEXTS = ("text/plain", "text/html")


def parse(content: bytes) -> Findings:
    """The plain text, else the page, and forwarded mails. Attachments are named, and nothing linked is opened."""
    mail = message_from_bytes(content, EmailMessage, policy=default)
    problems: list[str] = []
    text = _told(mail, problems)
    subject, author = (one_line(str(mail[name] or "")) for name in ("Subject", "From"))
    return Findings((text,), problems, title=subject, author=author)


def _told(mail: MIMEPart, problems: list[str]) -> str:
    """A mail with what its head says."""
    said = {name: one_line(str(mail[name])) for name in (*_TOLD, "Subject") if mail[name]}
    if not said:
        raise UnreadableFile("it has none of a mail's headers: save it from the mail program as .eml")
    subject = said.pop("Subject", "")
    attached = ", ".join(filter(None, map(_attached, mail.walk())))
    head = [f"{name}: {value}" for name, value in said.items()] + ([f"Attachments: {attached}"] if attached else [])
    pages = [f"# {subject}" if subject else "", "  \n".join(head), *_texts(mail, problems)]
    return "\n\n".join(filter(None, pages))


def _attached(part: MIMEPart) -> str:
    """The name of a file; nothing for what is read, and for pictures that a page shows."""
    is_shown = part.get_content_type() in _TEXTS or (part.get_content_maintype() == "image" and part["Content-ID"])
    return "" if is_shown and not part.is_attachment() else one_line(part.get_filename() or "")


def _texts(part: MIMEPart, problems: list[str]) -> Iterator[str]:
    """What its parts say, in order; of alternatives the plain text, or else the first that says something."""
    is_choice, is_mail = part.get_content_subtype() == "alternative", part.get_content_type() == "message/rfc822"
    if not part.is_multipart():
        if part.get_content_type() in _TEXTS and not part.is_attachment():
            yield _text(part, problems)
        return
    for each in sorted(part.iter_parts(), key=lambda each: is_choice and each.get_content_type() != _TEXTS[0]):
        try:
            told = [_told(each, problems)] if is_mail else [*_texts(each, problems)]
        except UnreadableFile as error:
            problems.append(f"a mail that is forwarded in it is not read: {error}")
            continue
        yield from told
        if is_choice and any(told):
            return


def _text(part: MIMEPart, problems: list[str]) -> str:
    content = part.get_payload(decode=True)
    try:
        text = decode(content if isinstance(content, bytes) else b"", declared=part.get_content_charset(""))
    except UnreadableFile as error:
        problems.append(str(error))
        return ""
    if part.get_content_subtype() != "html":
        return clean(text).replace("\r\n", "\n").strip()
    page, said = markdown_of(text)
    problems += said
    return page.strip("\n")
