//! Bodies that are flatbuffers tables, followed by their CRC32C.

use flatbuffers::{
    FlatBufferBuilder, Follow, ForwardsUOffset, Vector, Verifiable, VerifierOptions, WIPOffset,
};

use super::{Api, CRC_LEN, put_crc, take_crc};
use crate::code::{DecodeError, DecodeErrorKind};
use crate::frame::{Frame, Kind};

/// Tables nested deeper than this are refused; ours are three deep.
const DEPTH_MAX: usize = 8;

/// Appends a frame whose body is the table that `build` makes.
pub(super) fn put_table<T>(
    api: u8,
    kind: Kind,
    correlation: u32,
    out: &mut Vec<u8>,
    build: impl for<'b> FnOnce(&mut FlatBufferBuilder<'b>) -> WIPOffset<T>,
) {
    let table = build_table(build);
    let body_len = table.len() + CRC_LEN;
    let version = Api::from_number(api).map_or(1, Api::version_max);
    crate::frame::encode(api, version, kind, correlation, &[0u8; 0], body_len, out);
    let body_at = out.len();
    out.extend_from_slice(&table);
    put_crc(out, body_at);
}

/// A finished table.
pub(crate) fn build_table<T>(
    build: impl for<'b> FnOnce(&mut FlatBufferBuilder<'b>) -> WIPOffset<T>,
) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let root = build(&mut builder);
    builder.finish_minimal(root);
    builder.finished_data().to_vec()
}

/// The table in the body of a frame of this api and kind.
pub(super) fn take_table<'a, T>(frame: &Frame<'a>, api: Api, kind: Kind) -> Result<T::Inner, DecodeError>
where
    T: Follow<'a> + Verifiable + 'a,
{
    frame.expect(api, kind)?;
    take_table_of_any::<T>(frame)
}

/// The table in the body of a frame of any api.
pub(super) fn take_table_of_any<'a, T>(frame: &Frame<'a>) -> Result<T::Inner, DecodeError>
where
    T: Follow<'a> + Verifiable + 'a,
{
    frame.head_reader().end("head")?;
    let mut r = take_crc(frame)?;
    let at = r.at();
    read_table::<T>("body", r.rest(), at)
}

/// A table in bytes from outside, checked.
pub(crate) fn read_table<'a, T>(
    field: &'static str,
    bytes: &'a [u8],
    at: usize,
) -> Result<T::Inner, DecodeError>
where
    T: Follow<'a> + Verifiable + 'a,
{
    // References may share what they point to, so a short buffer can describe much; no honest one describes more than a
    // few times its bytes (tables share their descriptions).
    let options = VerifierOptions {
        max_depth: DEPTH_MAX,
        max_tables: bytes.len() / 4 + 1,
        max_apparent_size: bytes.len() * 8 + 1024,
        ignore_missing_null_terminator: false,
    };
    flatbuffers::root_with_opts::<T>(&options, bytes)
        .map_err(|_| DecodeError::new(field, at, DecodeErrorKind::Table))
}

/// An identity of 16 bytes.
pub(crate) fn id16(field: &'static str, bytes: Vector<'_, u8>, at: usize) -> Result<[u8; 16], DecodeError> {
    bytes.bytes().try_into().map_err(|_| DecodeError::rule(field, at, "is not 16 bytes"))
}

/// A list of strings.
pub(super) fn put_strings<'b>(
    builder: &mut FlatBufferBuilder<'b>,
    strings: &[String],
) -> WIPOffset<Vector<'b, ForwardsUOffset<&'b str>>> {
    let strings: Vec<_> = strings.iter().map(|text| builder.create_string(text)).collect();
    builder.create_vector(&strings)
}

/// The name behind which a list goes on; none where it begins.
pub(super) fn put_after<'b>(builder: &mut FlatBufferBuilder<'b>, after: &str) -> Option<WIPOffset<&'b str>> {
    (!after.is_empty()).then(|| builder.create_string(after))
}

/// A list of strings.
pub(super) fn take_strings(strings: Vector<'_, ForwardsUOffset<&str>>) -> Vec<String> {
    strings.iter().map(str::to_owned).collect()
}
