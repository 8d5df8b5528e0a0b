use httparse::{EMPTY_HEADER, Header, Response, Status};

/// Most bytes of a head, and of the trailers of a chunked body.
const HEAD_LIMIT: usize = 64 * 1024;
/// Most header fields of a response.
const HEADERS: usize = 128;
/// Most bytes of the line with the size of a chunk.
const CHUNK_LINE_LIMIT: usize = 4096;

/// Next part of the responses on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Head of a final response.
    Head {
        status: u16,
        /// Bytes of the names and values of its header fields, as h2load counts them.
        header_bytes: u64,
    },
    /// Bytes of its body.
    Body(&'a [u8]),
    /// End of the response.
    End {
        /// True if the connection takes further requests.
        keeps_alive: bool,
    },
}

/// Violation of HTTP/1.1 by a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("the response is no HTTP: {0}")]
    Syntax(httparse::Error),
    #[error("the head of a response is longer than {HEAD_LIMIT} bytes")]
    LongHead,
    #[error("the response is of another version than HTTP/1.x")]
    Version,
    #[error("the response switches protocols, which was not requested")]
    Switching,
    #[error(
        "the response has no clear length: its Content-Length is no number, or there are several lengths"
    )]
    Length,
    #[error("the response has a transfer coding other than chunked")]
    Coding,
    #[error("a chunk of the response is malformed")]
    Chunk,
    #[error("there is a response without a request, or a body longer than its Content-Length")]
    Unrequested,
    #[error("the connection ended within a response")]
    Truncated,
}

/// Parser of the responses on a connection.
pub(super) struct ResponseParser {
    state: State,
    /// Begin of a head or of a line of a chunked body.
    partial: Vec<u8>,
    keeps_alive: bool,
    /// `Alt-Svc` of the last head.
    alt_svc: Option<String>,
    /// True if the requests are of HEAD.
    is_head: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// Missing bytes of the body.
    Length(u64),
    ChunkSize,
    /// Missing bytes of a chunk.
    Chunk(u64),
    ChunkEnd,
    /// Bytes of the trailers before this one.
    Trailers(usize),
    UntilClose,
    End,
}

impl ResponseParser {
    pub(super) fn new(is_head: bool) -> Self {
        Self { state: State::Head, partial: Vec::new(), keeps_alive: true, alt_svc: None, is_head }
    }

    /// Next part in `bytes`, whose read part is removed; `None` asks for more bytes.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Part<'a>>, ResponseError> {
        loop {
            match self.state {
                State::Head => match self.head(bytes)? {
                    HeadStep::Final(part) => return Ok(Some(part)),
                    HeadStep::Interim => {}
                    HeadStep::Partial => return Ok(None),
                },
                State::Length(0) | State::End => {
                    self.state = State::Head;
                    return Ok(Some(Part::End { keeps_alive: self.keeps_alive }));
                }
                State::Length(missing) | State::Chunk(missing @ 1..) => {
                    let taken = take(bytes, missing);
                    let missing = missing - taken.len() as u64;
                    let is_chunk = matches!(self.state, State::Chunk(_));
                    self.state = if is_chunk { State::Chunk(missing) } else { State::Length(missing) };
                    return Ok((!taken.is_empty()).then_some(Part::Body(taken)));
                }
                State::Chunk(0) => self.state = State::ChunkEnd,
                State::UntilClose => {
                    let taken = take(bytes, u64::MAX);
                    return Ok((!taken.is_empty()).then_some(Part::Body(taken)));
                }
                State::ChunkSize | State::ChunkEnd | State::Trailers(_) => {
                    if !self.line(bytes)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Value of `Alt-Svc` in the head that was read last, if it had one.
    pub(super) fn take_alt_svc(&mut self) -> Option<String> {
        self.alt_svc.take()
    }

    /// End of the connection: the end of a response that it ends, or nothing between two responses.
    pub(super) fn finish(&mut self) -> Result<Option<Part<'static>>, ResponseError> {
        match self.state {
            State::UntilClose => {
                self.state = State::Head;
                Ok(Some(Part::End { keeps_alive: false }))
            }
            State::Head if self.partial.is_empty() => Ok(None),
            _ => Err(ResponseError::Truncated),
        }
    }

    fn head(&mut self, bytes: &mut &[u8]) -> Result<HeadStep, ResponseError> {
        if bytes.is_empty() {
            return Ok(HeadStep::Partial);
        }
        let before = self.partial.len();
        // Most heads are whole, and are parsed where they are.
        let parsed = if before == 0 {
            parse(bytes, self.is_head)?
        } else {
            self.partial.extend_from_slice(&bytes[..bytes.len().min(HEAD_LIMIT - before)]);
            parse(&self.partial, self.is_head)?
        };
        let Some((len, head)) = parsed else {
            if before == 0 {
                self.partial.extend_from_slice(&bytes[..bytes.len().min(HEAD_LIMIT)]);
            }
            *bytes = &[];
            let is_full = self.partial.len() >= HEAD_LIMIT;
            return if is_full { Err(ResponseError::LongHead) } else { Ok(HeadStep::Partial) };
        };
        self.partial.clear();
        *bytes = &bytes[len - before..];
        let Some(head) = head else { return Ok(HeadStep::Interim) };
        self.keeps_alive = head.keeps_alive;
        self.alt_svc = head.alt_svc;
        self.state = head.body;
        Ok(HeadStep::Final(Part::Head { status: head.status, header_bytes: head.header_bytes }))
    }

    /// Reads a line between the chunks of a body; false asks for more bytes.
    fn line(&mut self, bytes: &mut &[u8]) -> Result<bool, ResponseError> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = take(bytes, end.map_or(bytes.len(), |end| end + 1) as u64);
        self.partial.extend_from_slice(taken);
        if self.partial.len() > CHUNK_LINE_LIMIT {
            return Err(ResponseError::Chunk);
        }
        if end.is_none() {
            return Ok(false);
        }
        let line = self.partial.strip_suffix(b"\n").unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.state = match self.state {
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::ChunkSize => match chunk_size(line).ok_or(ResponseError::Chunk)? {
                0 => State::Trailers(0),
                size => State::Chunk(size),
            },
            State::Trailers(_) if line.is_empty() => State::End,
            State::Trailers(before) if before + line.len() <= HEAD_LIMIT => {
                State::Trailers(before + line.len() + 1)
            }
            _ => return Err(ResponseError::Chunk),
        };
        self.partial.clear();
        Ok(true)
    }
}

/// Outcome of reading a head.
enum HeadStep {
    Final(Part<'static>),
    /// An interim response [RFC 9110, 15.2].
    Interim,
    Partial,
}

/// Takes at most so many bytes from the front.
fn take<'a>(bytes: &mut &'a [u8], most: u64) -> &'a [u8] {
    let len = usize::try_from(most).map_or(bytes.len(), |most| most.min(bytes.len()));
    let (taken, rest) = bytes.split_at(len);
    *bytes = rest;
    taken
}

/// Size of a chunk, before its extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    let is_hexadecimal = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_hexadecimal)?;
    u64::from_str_radix(digits, 16).ok()
}

/// Head of a final response, as far as it matters here.
struct Head {
    status: u16,
    header_bytes: u64,
    keeps_alive: bool,
    alt_svc: Option<String>,
    body: State,
}

/// Length and content of the head at the front of `bytes`; `None` if it is not whole. An interim response has no
/// content.
fn parse(bytes: &[u8], is_head: bool) -> Result<Option<(usize, Option<Head>)>, ResponseError> {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut response = Response::new(&mut headers);
    let len = match response.parse(bytes).map_err(ResponseError::Syntax)? {
        Status::Complete(len) => len,
        Status::Partial => return Ok(None),
    };
    let (Some(version), Some(status)) = (response.version, response.code) else {
        return Err(ResponseError::Version);
    };
    match status {
        101 => return Err(ResponseError::Switching),
        100..=199 => return Ok(Some((len, None))),
        _ => {}
    }
    let mut framing = Framing { keeps_alive: version == 1, ..Framing::default() };
    let mut header_bytes = 0;
    for header in response.headers.iter() {
        header_bytes += (header.name.len() + header.value.len()) as u64;
        framing.read(header)?;
    }
    let has_no_body = is_head || matches!(status, 204 | 304);
    let body = framing.body(has_no_body)?;
    let keeps_alive = framing.keeps_alive && body != State::UntilClose;
    Ok(Some((len, Some(Head { status, header_bytes, keeps_alive, alt_svc: framing.alt_svc, body }))))
}

/// Header fields that say where a response ends [RFC 9112, 6.3].
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    is_chunked: bool,
    keeps_alive: bool,
    /// Value of `Alt-Svc`, which is read in the same pass.
    alt_svc: Option<String>,
}

impl Framing {
    fn read(&mut self, header: &Header<'_>) -> Result<(), ResponseError> {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // Most fields differ in their length already.
        match header.name.len() {
            14 if is("content-length") => {
                let digits = header.value.trim_ascii();
                let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
                let text = std::str::from_utf8(digits).ok().filter(|_| is_number);
                let length = text.and_then(|text| text.parse().ok()).ok_or(ResponseError::Length)?;
                if self.length.replace(length).is_some_and(|before| before != length) {
                    return Err(ResponseError::Length);
                }
            }
            17 if is("transfer-encoding") => {
                if self.is_chunked || !header.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(ResponseError::Coding);
                }
                self.is_chunked = true;
            }
            7 if is("alt-svc") => {
                let value = String::from_utf8_lossy(header.value);
                self.alt_svc = Some(match self.alt_svc.take() {
                    Some(before) => format!("{before}, {value}"),
                    None => value.into_owned(),
                });
            }
            10 if is("connection") => {
                for option in header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    if option.eq_ignore_ascii_case(b"close") {
                        self.keeps_alive = false;
                    } else if option.eq_ignore_ascii_case(b"keep-alive") {
                        self.keeps_alive = true;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn body(&self, has_none: bool) -> Result<State, ResponseError> {
        match (has_none, self.is_chunked, self.length) {
            // Both are a sign of response splitting [RFC 9112, 6.3].
            (_, true, Some(_)) => Err(ResponseError::Length),
            (true, _, _) => Ok(State::End),
            (false, true, None) => Ok(State::ChunkSize),
            (false, false, Some(length)) => Ok(State::Length(length)),
            (false, false, None) => Ok(State::UntilClose),
        }
    }
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
