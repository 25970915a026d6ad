//! How values of arrays are read from their bytes.
use std::ops::Range;

/// The values of an array, one after the other.
pub(crate) struct Flat<'a, T> {
    pub(super) bytes: &'a [u8],
    pub(super) size: usize,
    pub(super) read: fn(&[u8]) -> T,
}

impl<T> Flat<'_, T> {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.size
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.bytes.chunks_exact(self.size).map(self.read)
    }

    /// Those at `place`, as far as they are there.
    pub(crate) fn at(&self, place: Range<usize>) -> impl Iterator<Item = T> + '_ {
        let end = place.end.min(self.len());
        let bytes = &self.bytes[place.start.min(end) * self.size..end * self.size];
        bytes.chunks_exact(self.size).map(self.read)
    }
}

/// How a type of numbers is read from its bytes.
pub(super) struct Number {
    pub(super) size: usize,
    pub(super) to_f64: fn(&[u8]) -> f64,
    /// For whole numbers; those beyond i64 become -1, which is no class.
    pub(super) to_whole: Option<fn(&[u8]) -> i64>,
}

/// The type that NumPy writes as `descr`, or `BF16`, which it does not have.
pub(super) fn number(descr: &str) -> Option<Number> {
    /// The bytes of one value; slices that are passed have its size.
    fn bytes<const SIZE: usize>(b: &[u8]) -> [u8; SIZE] {
        b.first_chunk().copied().unwrap_or([0; SIZE])
    }
    macro_rules! whole {
        ($t:ty, $from:ident) => {
            Number {
                size: size_of::<$t>(),
                to_f64: |b| <$t>::$from(bytes(b)) as f64,
                to_whole: Some(|b| i64::try_from(<$t>::$from(bytes(b))).unwrap_or(-1)),
            }
        };
    }
    macro_rules! float {
        ($t:ty, $from:ident) => {
            Number { size: size_of::<$t>(), to_f64: |b| f64::from(<$t>::$from(bytes(b))), to_whole: None }
        };
    }
    macro_rules! types {
        ($($name:literal: $kind:ident $t:ty,)*) => {
            match descr.split_at_checked(1)? {
                $(("<" | "|", $name) => Some($kind!($t, from_le_bytes)),
                (">", $name) => Some($kind!($t, from_be_bytes)),)*
                ("|", "b1") => Some(Number {
                    size: 1,
                    to_f64: |b| f64::from(u8::from(b[0] != 0)),
                    to_whole: Some(|b| i64::from(b[0] != 0)),
                }),
                ("B", "F16") => Some(float!(half::bf16, from_le_bytes)),
                _ => None,
            }
        };
    }
    types! {
        "u1": whole u8, "u2": whole u16, "u4": whole u32, "u8": whole u64,
        "i1": whole i8, "i2": whole i16, "i4": whole i32, "i8": whole i64,
        "f2": float half::f16, "f4": float f32, "f8": float f64,
    }
}

/// How texts of one length are read from their bytes.
pub(super) struct Text {
    pub(super) size: usize,
    /// What `read` wants.
    pub(super) encoding: &'static str,
    pub(super) read: fn(&[u8]) -> Option<String>,
}

/// The type of texts that NumPy writes as `descr`: `|S5` has 5 bytes, `<U5` 5 characters of 4
/// bytes.
pub(super) fn text(descr: &str) -> Option<Text> {
    fn utf_32(bytes: &[u8], number: fn([u8; 4]) -> u32) -> Option<String> {
        let (characters, _) = bytes.as_chunks::<4>();
        characters.iter().map(|&character| char::from_u32(number(character))).collect()
    }
    let (kind, length) = descr.split_at_checked(2)?;
    let (size, encoding): (usize, _) = if kind.ends_with('U') { (4, "Unicode") } else { (1, "UTF-8") };
    let size = size.checked_mul(length.parse().ok()?)?;
    let read: fn(&[u8]) -> Option<String> = match kind {
        "|S" | "<S" | ">S" => |bytes| Some(std::str::from_utf8(bytes).ok()?.to_owned()),
        "<U" => |bytes| utf_32(bytes, u32::from_le_bytes),
        ">U" => |bytes| utf_32(bytes, u32::from_be_bytes),
        _ => return None,
    };
    Some(Text { size, encoding, read })
}
