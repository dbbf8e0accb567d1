//! How a byte stream is cut into frames.
//!
//! ```text
//! 0        4     5         6       8             12         14         16         20          20+head_len
//! | length | api | version | flags | correlation | head_len | reserved | head_crc | fixed head | body ..
//! ```
//! `length` counts the bytes behind itself. `head_crc` is the CRC32C of everything before the body but itself, so a
//! flipped partition or ack level cannot pass; the body has a checksum of its own.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::api::Api;
use crate::code::{DecodeError, DecodeErrorKind, Reader};
use crate::crc;

/// Bytes in front of the fixed head.
pub const PREFIX_LEN: usize = 20;
/// Bytes of the length field, which it does not count.
pub const LENGTH_LEN: usize = 4;
/// Flag: this frame answers the request of its correlation.
pub const REPLY: u16 = 1;
/// Flag: the answer is an error; set with [`REPLY`].
pub const ERROR: u16 = 2;
/// Longest frame, as `length` counts, before a connection has said hello.
pub const HELLO_BYTES_MAX: u32 = 16 * 1024;

const CRC_AT: usize = 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Prefix {
    length: U32,
    api: u8,
    version: u8,
    flags: U16,
    correlation: U32,
    head_len: U16,
    reserved: U16,
    head_crc: U32,
}

const _: () = assert!(size_of::<Prefix>() == PREFIX_LEN);

/// What a frame is in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Asks, or is sent unasked.
    Request,
    /// Answers.
    Reply,
    /// Answers that it was not done: the body is an [`crate::api::error::ErrorBody`].
    Error,
}

impl Kind {
    /// The flags of such a frame.
    pub fn flags(self) -> u16 {
        match self {
            Kind::Request => 0,
            Kind::Reply => REPLY,
            Kind::Error => REPLY | ERROR,
        }
    }
}

/// A whole frame in the bytes that it came in; its head is checked, its body is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The number of the api, perhaps an unknown one: see [`Frame::api`].
    pub api_number: u8,
    /// The version of the api's layout.
    pub version: u8,
    /// Request, reply or error.
    pub kind: Kind,
    /// Chosen by the asking side; returned in the answer.
    pub correlation: u32,
    /// The fixed head.
    pub head: &'a [u8],
    /// The body.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Bytes of the whole frame, its length field included.
    pub fn len(&self) -> usize {
        self.body_at() + self.body.len()
    }

    /// Never: a frame has a prefix.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where the body begins, bytes from the frame's first.
    pub fn body_at(&self) -> usize {
        PREFIX_LEN + self.head.len()
    }

    /// The api, if this version knows it and the frame's version of it.
    pub fn api(&self) -> Result<Api, Unsupported> {
        let Some(api) = Api::from_number(self.api_number) else {
            return Err(Unsupported { api_number: self.api_number, version: self.version, api: None });
        };
        if self.version < api.version_min() || self.version > api.version_max() {
            return Err(Unsupported { api_number: self.api_number, version: self.version, api: Some(api) });
        }
        Ok(api)
    }

    /// That this is such a frame; for decoders, which are called after somebody has looked at [`Frame::api`].
    pub fn expect(&self, api: Api, kind: Kind) -> Result<(), DecodeError> {
        if self.api_number != api.number() {
            let kind = DecodeErrorKind::Unknown { found: i64::from(self.api_number) };
            return Err(DecodeError::new("api", 4, kind));
        }
        if self.kind != kind {
            let kind = DecodeErrorKind::Unknown { found: i64::from(self.kind.flags()) };
            return Err(DecodeError::new("flags", 6, kind));
        }
        Ok(())
    }

    /// A reader of the fixed head that names places in the frame.
    pub fn head_reader(&self) -> Reader<'a> {
        Reader::new_at(self.head, PREFIX_LEN)
    }

    /// A reader of the body that names places in the frame.
    pub fn body_reader(&self) -> Reader<'a> {
        Reader::new_at(self.body, self.body_at())
    }
}

/// An api or a version of it that this side does not speak. The connection can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The number of the api.
    pub api_number: u8,
    /// The version asked for.
    pub version: u8,
    /// The api, where only the version is unknown.
    pub api: Option<Api>,
}

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unsupported { api_number, version, api } = *self;
        match api {
            None => write!(f, "api {api_number} is unknown"),
            Some(api) => write!(
                f,
                "version {version} of api {} ({api_number}) is unknown; supported are {} to {}",
                api.name(),
                api.version_min(),
                api.version_max()
            ),
        }
    }
}

impl std::error::Error for Unsupported {}

/// What stands at the front of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split<'a> {
    /// A whole frame; the next one begins [`Frame::len`] bytes later.
    Frame(Frame<'a>),
    /// More bytes have to come.
    Incomplete {
        /// Bytes that must be there before it makes sense to look again: the whole frame once its length is known,
        /// before that the prefix.
        needed: usize,
    },
}

/// The first frame of `bytes`. `length_max` is the limit for the length field; it is checked as soon as that field is
/// there, and the head as soon as it is there, so that no memory is set aside for a frame that cannot be one.
///
/// # Errors
/// The stream cannot be trusted any more: answer with an error frame and close.
pub fn split(bytes: &[u8], length_max: u32) -> Result<Split<'_>, DecodeError> {
    let mut r = Reader::new(bytes);
    if bytes.len() >= LENGTH_LEN {
        let length = r.clone().u32("length")?;
        if length > length_max {
            let kind = DecodeErrorKind::AboveLimit { limit: u64::from(length_max), found: u64::from(length) };
            return Err(DecodeError::new("length", 0, kind));
        }
        if (length as usize) < PREFIX_LEN - LENGTH_LEN {
            let kind = DecodeErrorKind::BelowLimit {
                limit: (PREFIX_LEN - LENGTH_LEN) as i64,
                found: i64::from(length),
            };
            return Err(DecodeError::new("length", 0, kind));
        }
    }
    if bytes.len() < PREFIX_LEN {
        return Ok(Split::Incomplete { needed: PREFIX_LEN });
    }
    let prefix: &Prefix = r.fixed("prefix")?;
    let frame_len = LENGTH_LEN + prefix.length.get() as usize;
    let head_len = usize::from(prefix.head_len.get());
    if head_len > frame_len - PREFIX_LEN {
        let limit = (frame_len - PREFIX_LEN) as u64;
        return Err(DecodeError::new(
            "head_len",
            12,
            DecodeErrorKind::AboveLimit { limit, found: head_len as u64 },
        ));
    }
    if r.left() < head_len {
        return Ok(Split::Incomplete { needed: frame_len });
    }
    let head = r.bytes("head", head_len)?;
    let kind = check_prefix(prefix, head)?;
    if bytes.len() < frame_len {
        return Ok(Split::Incomplete { needed: frame_len });
    }
    Ok(Split::Frame(Frame {
        api_number: prefix.api,
        version: prefix.version,
        kind,
        correlation: prefix.correlation.get(),
        head,
        body: &bytes[PREFIX_LEN + head_len..frame_len],
    }))
}

/// What to put into the answer to a frame that cannot be read: the api and correlation that it claims, 0 where they have
/// not come.
pub fn claimed(bytes: &[u8]) -> (u8, u32) {
    let mut r = Reader::new(bytes);
    let prefix = r.fixed::<Prefix>("prefix");
    prefix.map_or((0, 0), |prefix| (prefix.api, prefix.correlation.get()))
}

fn check_prefix(prefix: &Prefix, head: &[u8]) -> Result<Kind, DecodeError> {
    let computed = head_crc(prefix, head);
    let stored = prefix.head_crc.get();
    if stored != computed {
        return Err(DecodeError::new("head_crc", CRC_AT, DecodeErrorKind::Checksum { stored, computed }));
    }
    if prefix.reserved.get() != 0 {
        return Err(DecodeError::new("reserved", 14, DecodeErrorKind::Reserved));
    }
    match prefix.flags.get() {
        0 => Ok(Kind::Request),
        REPLY => Ok(Kind::Reply),
        flags if flags == REPLY | ERROR => Ok(Kind::Error),
        found => Err(DecodeError::new("flags", 6, DecodeErrorKind::Unknown { found: i64::from(found) })),
    }
}

fn head_crc(prefix: &Prefix, head: &[u8]) -> u32 {
    crc::append(crc::of(&prefix.as_bytes()[..CRC_AT]), head)
}

/// Appends the prefix and the fixed head of a frame to `out`. `body_len` bytes of body have to follow, from wherever
/// they lie.
///
/// # Panics
/// If the head is longer than 65,535 bytes or the frame than 2^32 - 1: both are bounded by our own limits.
pub fn encode<H: IntoBytes + Immutable + ?Sized>(
    api: u8,
    version: u8,
    kind: Kind,
    correlation: u32,
    head: &H,
    body_len: usize,
    out: &mut Vec<u8>,
) {
    let head = head.as_bytes();
    let length = PREFIX_LEN - LENGTH_LEN + head.len() + body_len;
    let mut prefix = Prefix {
        length: U32::new(u32::try_from(length).expect("frames are bounded by frame_bytes_max")),
        api,
        version,
        flags: U16::new(kind.flags()),
        correlation: U32::new(correlation),
        head_len: U16::new(u16::try_from(head.len()).expect("fixed heads are short")),
        reserved: U16::ZERO,
        head_crc: U32::ZERO,
    };
    prefix.head_crc = U32::new(head_crc(&prefix, head));
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(head);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut out = Vec::new();
        encode(Api::Ping.number(), 1, Kind::Reply, 7, &b"head"[..], 4, &mut out);
        out.extend_from_slice(b"body");
        out
    }

    #[test]
    fn a_stream_is_cut_at_every_place_without_an_error() {
        let one = sample();
        let mut stream = one.clone();
        stream.extend_from_slice(&one);
        for cut in 0..one.len() {
            match split(&stream[..cut], 1000).expect("incomplete is not an error") {
                Split::Incomplete { needed } => {
                    assert!(needed > cut && needed <= one.len(), "{cut}: {needed}")
                }
                Split::Frame(_) => panic!("a frame in {cut} bytes of {}", one.len()),
            }
        }
        let Split::Frame(frame) = split(&stream, 1000).expect("good") else { panic!("whole frame") };
        assert_eq!((frame.len(), frame.head, frame.body), (one.len(), &b"head"[..], &b"body"[..]));
        assert_eq!((frame.api(), frame.kind, frame.correlation), (Ok(Api::Ping), Kind::Reply, 7));
        assert!(matches!(split(&stream[frame.len()..], 1000), Ok(Split::Frame(_))));
    }

    #[test]
    fn a_flipped_bit_before_the_body_is_noticed() {
        let good = sample();
        for byte in 0..PREFIX_LEN + 4 {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                // A longer length only looks incomplete until the head is there; here it is.
                assert!(split(&bad, 1000).is_err(), "byte {byte} bit {bit}");
            }
        }
    }

    #[test]
    fn a_length_out_of_bounds_is_refused_before_the_rest_is_there() {
        let mut bytes = sample();
        let kind = |bytes: &[u8], max| split(bytes, max).map(|_| ()).map_err(|e| (e.field, e.kind));
        assert_eq!(
            kind(&bytes[..4], 23),
            Err(("length", DecodeErrorKind::AboveLimit { limit: 23, found: 24 }))
        );
        bytes[0] = 15;
        assert_eq!(
            kind(&bytes[..4], 1000),
            Err(("length", DecodeErrorKind::BelowLimit { limit: 16, found: 15 }))
        );
    }

    #[test]
    fn a_broken_frame_can_still_be_answered() {
        let mut bytes = sample();
        bytes[0] = 255;
        assert_eq!(claimed(&bytes), (Api::Ping.number(), 7));
        assert_eq!(claimed(&bytes[..19]), (0, 0));
    }

    #[test]
    fn an_unknown_api_is_a_whole_frame_and_says_what_is_supported() {
        let mut out = Vec::new();
        encode(200, 1, Kind::Request, 1, &[][..] as &[u8], 0, &mut out);
        let Ok(Split::Frame(frame)) = split(&out, 100) else { panic!("whole frame") };
        assert_eq!(frame.api().map_err(|e| e.to_string()), Err("api 200 is unknown".to_owned()));
        let frame = Frame { api_number: Api::Produce.number(), version: 9, ..frame };
        assert_eq!(
            frame.api().map_err(|e| e.to_string()),
            Err("version 9 of api produce (10) is unknown; supported are 1 to 1".to_owned())
        );
    }
}
