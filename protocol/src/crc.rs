//! CRC32C (Castagnoli) of buffers, and of buffers put together without reading them again.

/// The polynomial, bits reversed.
const POLY: u32 = 0x82f6_3b78;

/// `X_POWERS[k]` is x^(8 * 2^k) modulo the polynomial, bits reversed: what 2^k zero bytes do to a remainder.
const X_POWERS: [u32; 64] = {
    let mut table = [0; 64];
    // x^8: bit 0 of the polynomial is the highest bit here.
    table[0] = 1 << (31 - 8);
    let mut k = 1;
    while k < 64 {
        table[k] = multiply(table[k - 1], table[k - 1]);
        k += 1;
    }
    table
};

/// CRC32C of `bytes`.
#[inline]
pub fn of(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC32C of the bytes that gave `crc`, followed by `bytes`.
#[inline]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// CRC32C of two pieces put together, from the CRC of each and the length of the second in bytes.
#[inline]
pub fn combine(first: u32, second: u32, second_len: usize) -> u32 {
    shift(first, second_len) ^ second
}

/// The CRC32C after some bytes were replaced by others of the same length: `crc` belonged to the whole, `behind` bytes
/// follow the replaced ones.
///
/// CRC is linear over XOR: two messages of one length differ in their CRC by the CRC (without start and end value) of
/// their difference.
pub fn patch(crc: u32, old: &[u8], new: &[u8], behind: usize) -> u32 {
    assert_eq!(old.len(), new.len(), "a patch keeps the length");
    crc ^ shift(of(old) ^ of(new), behind)
}

/// What `zeros` bytes of zero behind do to a remainder.
fn shift(remainder: u32, zeros: usize) -> u32 {
    let mut factor = remainder;
    let mut left = zeros;
    let mut k = 0;
    while left != 0 {
        if left & 1 == 1 {
            factor = multiply(X_POWERS[k], factor);
        }
        left >>= 1;
        k += 1;
    }
    factor
}

/// The product of two polynomials modulo the CRC's, bits reversed.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 1 { (b >> 1) ^ POLY } else { b >> 1 };
        bit >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_is_that_of_castagnoli() {
        assert_eq!(of(b"123456789"), 0xe306_9283);
        assert_eq!(append(of(b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn combine_equals_reading_the_whole() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for cut in [0, 1, 20, 21, 4096, 65_535, 99_999, 100_000] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(combine(of(a), of(b), b.len()), of(&bytes), "cut at {cut}");
            assert_eq!(combine(of(a), of(b), b.len()), crc32c::crc32c_combine(of(a), of(b), b.len()));
        }
    }

    #[test]
    fn patch_equals_reading_the_whole() {
        let old: Vec<u8> = (0..5_000u32).map(|i| (i * 13) as u8).collect();
        for (from, to) in [(0, 1), (0, 5000), (21, 43), (4990, 5000), (17, 17)] {
            let mut new = old.clone();
            for byte in &mut new[from..to] {
                *byte = byte.wrapping_mul(5).wrapping_add(3);
            }
            assert_eq!(patch(of(&old), &old[from..to], &new[from..to], old.len() - to), of(&new));
        }
    }
}
