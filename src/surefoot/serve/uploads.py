"""The images in a request: read as they arrive, never more bytes than allowed."""

from dataclasses import dataclass, field

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from surefoot.deploy.rows import CSV, JSON
from surefoot.serve.limits import Limits, RefusedError, RequestMemory
from surefoot.text import count_of

FORM, RAW = "multipart/form-data", ("image/", "application/octet-stream")
HOW = f"allowed: {FORM} with files in it, or one image as image/jpeg, image/png and so on"
ROWS = (JSON, CSV)
HOW_ROWS = f"allowed: {JSON} with a list of objects, or {CSV}"
OTHER_FIELDS = 100  # of a form, besides its images
LONGEST = 200  # characters of a client's text that are sent back


@dataclass(eq=False)
class Upload:
    """One image as it arrived, or why it was refused."""

    name: str | None = None
    data: bytearray = field(default_factory=bytearray)
    refused: RefusedError | None = None


async def read_uploads(request: Request, limits: Limits, memory: RequestMemory) -> list[Upload]:
    """Every image of a request; its bytes are counted in `memory`."""
    content_type = request.headers.get("content-type", "")
    kind, options = parse_options_header(content_type)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RefusedError(415, "the request is compressed; allowed: no content encoding")
    reader: Form | Raw
    if kind == FORM.encode():
        if not options.get(b"boundary"):
            raise RefusedError(400, "the form has no boundary in its content type")
        reader = Form(options[b"boundary"], limits, memory)
    elif kind.decode("latin-1").startswith(RAW):
        reader = Raw(limits, memory)
    else:
        raise RefusedError(415, f"the request is {_printable(kind) or 'of no type'}; {HOW}")
    await _feed(request, reader, limits)
    uploads = reader.uploads()
    if not uploads:
        raise RefusedError(422, f"the request has no image in it; {HOW}")
    return uploads


async def read_rows_body(request: Request, limits: Limits, memory: RequestMemory) -> tuple[str, bytearray]:
    """The type and the bytes of a request with rows; its bytes are counted in `memory`."""
    kind = parse_options_header(request.headers.get("content-type", ""))[0].decode("latin-1")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RefusedError(415, "the request is compressed; allowed: no content encoding")
    if kind not in ROWS:
        raise RefusedError(415, f"the request is {_printable(kind.encode()) or 'of no type'}; {HOW_ROWS}")
    reader = Body(memory)
    await _feed(request, reader, limits)
    if not reader.data:
        raise RefusedError(422, f"the request has no rows in it; {HOW_ROWS}")
    return kind, reader.data


class Body:
    """A body of rows, as it arrived."""

    def __init__(self, memory: RequestMemory) -> None:
        self.memory = memory
        self.data = bytearray()

    def write(self, chunk: bytes) -> None:
        """Add a chunk of the body."""
        self.memory.add(len(chunk))
        self.data += chunk

    def close(self) -> None:
        """End of the body."""


async def _feed(request: Request, reader: "Form | Raw | Body", limits: Limits) -> None:
    too_large = RefusedError(
        413, f"the request is larger than {limits.max_bytes:,} bytes, which is the most allowed"
    )
    announced = request.headers.get("content-length", "0")
    if int(announced) > limits.max_bytes:
        raise too_large
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
        if total > limits.max_bytes:
            raise too_large
        reader.write(chunk)
    reader.close()


class Raw:
    """A body that is one image."""

    def __init__(self, limits: Limits, memory: RequestMemory) -> None:
        self.limits = limits
        self.memory = memory
        self.upload = Upload()

    def write(self, chunk: bytes) -> None:
        """Add a chunk of the body."""
        append(self.upload, chunk, self.limits, self.memory)

    def close(self) -> None:
        """End of the body."""

    def uploads(self) -> list[Upload]:
        """The image, if there were any bytes."""
        return [self.upload] if self.upload.data or self.upload.refused else []


class Form:
    """A body that is a form; every file in it is an image, other fields are ignored."""

    def __init__(self, boundary: bytes, limits: Limits, memory: RequestMemory) -> None:
        self.limits = limits
        self.memory = memory
        self.files: list[Upload] = []
        self.current: Upload | None = None
        self.header, self.value, self.headers = b"", b"", dict[bytes, bytes]()
        try:
            self.parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise RefusedError(400, "the form has an invalid boundary") from error
        self.parts, self.ended = 0, False

    def write(self, chunk: bytes) -> None:
        """Add a chunk of the body."""
        try:
            self.parser.write(chunk)
        except FormParserError as error:
            raise RefusedError(400, f"the form is broken: not {FORM} as its content type says") from error

    def close(self) -> None:
        """End of the body, which must be complete."""
        if not self.ended:
            raise RefusedError(400, "the form is incomplete: its last boundary is missing")

    def uploads(self) -> list[Upload]:
        """Every file; an empty file field of a web page is ignored."""
        return [each for each in self.files if each.name or each.data or each.refused]

    def _begin(self) -> None:
        self.current, self.headers = None, {}
        self.parts += 1
        if self.parts > self.limits.max_images + OTHER_FIELDS:
            raise RefusedError(413, f"the form has more than {self.parts - 1} parts, the most allowed")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def _header_end(self) -> None:
        self.headers[self.header.lower()] = self.value
        self.header, self.value = b"", b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self.headers.get(b"content-disposition"))
        typed = self.headers.get(b"content-type", b"").lower().startswith(b"image/")
        if b"filename" in options or typed:
            if len(self.files) == self.limits.max_images:
                most = count_of(self.limits.max_images, "image")
                raise RefusedError(413, f"the form has more than {most}, the most allowed")
            name = options.get(b"filename", b"").replace(b"%22", b'"')  # browsers escape quotes so
            self.current = Upload(_printable(name))
            self.files.append(self.current)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self.current is not None:
            append(self.current, data[start:end], self.limits, self.memory)

    def _end(self) -> None:
        self.ended = True


def append(upload: Upload, chunk: bytes, limits: Limits, memory: RequestMemory) -> None:
    """Append to an image's bytes; those of an image that is too large are dropped."""
    if upload.refused is not None:
        return
    if len(upload.data) + len(chunk) > limits.max_image_bytes:
        memory.add(-len(upload.data))
        upload.data = bytearray()
        most = f"{limits.max_image_bytes:,} bytes"
        upload.refused = RefusedError(413, f"the image is larger than {most}, which is the most allowed")
        return
    memory.add(len(chunk))
    upload.data += chunk


def _printable(data: bytes) -> str:
    """A client's text, shortened and without control characters."""
    text = data.decode(errors="replace")
    return "".join(letter for letter in text if letter.isprintable())[:LONGEST]
