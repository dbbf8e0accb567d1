//! What the headers of extent, frame, run and checkpoint have in common.
//!
//! `magic [4] | format u16 | header length u16 | ... | CRC u32 over all before it`. The superblock, which must be told from
//! damage whatever its format, has a head of its own.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{DiskError, FORMAT};

/// Bytes of the CRC that ends a header.
const CRC_BYTES: usize = 4;

/// The header of layout `Raw` at the start of `bytes`: of this magic, whole, and of the format that this code knows. What
/// its own fields say is not looked at.
pub(crate) fn open<'a, Raw>(bytes: &'a [u8], magic: [u8; 4], what: &'static str) -> Result<&'a Raw, DiskError>
where
    Raw: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| DiskError::short(what, bytes.len()))?;
    let header = &bytes[..size_of::<Raw>()];
    let crc_at = header.len() - CRC_BYTES;
    if header[..4] != magic {
        return Err(DiskError::bad(what, 0));
    }
    if crc32c::crc32c(&header[..crc_at]) != crc(header) {
        return Err(DiskError::crc(what, crc_at));
    }
    match (u16_at(header, 4), usize::from(u16_at(header, 6))) {
        (FORMAT, length) if length == header.len() => Ok(raw),
        (FORMAT, _) => Err(DiskError::bad(what, 6)),
        (format, _) => Err(DiskError::unknown_format(what, format)),
    }
}

/// Puts the CRC at the end of a header that is complete but for it, and returns it.
pub(crate) fn seal(header: &mut [u8]) -> u32 {
    let crc_at = header.len() - CRC_BYTES;
    let crc = crc32c::crc32c(&header[..crc_at]);
    header[crc_at..].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// The CRC that ends a header.
pub(crate) fn crc(header: &[u8]) -> u32 {
    let bytes: [u8; CRC_BYTES] = header[header.len() - CRC_BYTES..].try_into().expect("four bytes");
    u32::from_le_bytes(bytes)
}

fn u16_at(header: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskErrorKind;

    #[test]
    fn a_whole_header_of_a_later_format_is_told_from_damage() {
        let mut header = [7; 16];
        header[..4].copy_from_slice(b"TGxx");
        header[4..6].copy_from_slice(&(FORMAT + 1).to_le_bytes());
        header[6..8].copy_from_slice(&16u16.to_le_bytes());
        seal(&mut header);
        let open = |header: &[u8]| open::<[u8; 16]>(header, *b"TGxx", "header").map(drop).map_err(|e| e.kind);
        assert_eq!(open(&header), Err(DiskErrorKind::Format(FORMAT + 1)));
        header[9] ^= 1;
        assert_eq!(open(&header), Err(DiskErrorKind::Checksum));
        header[9] ^= 1;
        header[4..6].copy_from_slice(&FORMAT.to_le_bytes());
        seal(&mut header);
        assert_eq!(open(&header), Ok(()));
        assert_eq!(open(&header[..15]), Err(DiskErrorKind::Short));
    }
}
