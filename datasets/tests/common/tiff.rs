//! TIFF files of pages.
#![allow(dead_code)] // Each test file uses some of it.

/// A page of a TIFF in the making.
pub struct Page {
    pub width: u16,
    pub height: u16,
    pub pixels: Vec<u8>,
    pub bits: u16,
    pub subfile: u32,
    pub orientation: u16,
}

impl Page {
    pub fn grey(width: u16, height: u16, pixels: &[u8]) -> Self {
        Self { width, height, pixels: pixels.to_vec(), bits: 8, subfile: 0, orientation: 1 }
    }
}

/// A TIFF of grey pages without compression, of either byte order; `next` is what the last page
/// leads to.
pub fn tiff(pages: &[Page], big: bool, next: Option<usize>) -> Vec<u8> {
    let u2 = |x: u16| if big { x.to_be_bytes() } else { x.to_le_bytes() };
    let u4 = |x: u32| if big { x.to_be_bytes() } else { x.to_le_bytes() };
    let mut bytes = [if big { *b"MM" } else { *b"II" }, u2(42)].concat();
    bytes.extend(u4(0));
    let (mut link, mut directories) = (4, Vec::new());
    for page in pages {
        let pixels = bytes.len() as u32;
        bytes.extend(&page.pixels);
        bytes.resize(bytes.len().next_multiple_of(2), 0);
        let at = bytes.len();
        bytes[link..link + 4].copy_from_slice(&u4(at as u32));
        directories.push(at);
        let fields: [(u16, u32); 10] = [
            (254, page.subfile),
            (256, page.width.into()),
            (257, page.height.into()),
            (258, page.bits.into()),
            (259, 1),
            (262, 1),
            (273, pixels),
            (274, page.orientation.into()),
            (278, page.height.into()),
            (279, page.pixels.len() as u32),
        ];
        bytes.extend(u2(fields.len() as u16));
        for (name, value) in fields {
            let is_long = matches!(name, 254 | 273 | 279);
            bytes.extend([u2(name), u2(if is_long { 4 } else { 3 })].concat());
            bytes.extend(u4(1));
            match is_long {
                true => bytes.extend(u4(value)),
                false => bytes.extend([u2(value as u16), [0, 0]].concat()),
            }
        }
        link = bytes.len();
        bytes.extend(u4(next.and_then(|next| directories.get(next)).map_or(0, |&at| at as u32)));
    }
    bytes
}
