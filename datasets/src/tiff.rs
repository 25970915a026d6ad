//! Pages of a TIFF, and what must hold of them before they are handed to their decoder.
//!
//! The decoder reads the page that the header leads to; [`PageReader`] shows it a header that leads
//! to another. Pages that a file keeps beside an image, at a lower resolution or as its mask, are
//! no images of their own.
//!
//! Version 0.11 of the `tiff` crate takes memory for as many values as a field says that it has, up
//! to 256 MiB and before a limit can be set. In a file that is whole, each value takes a byte or
//! more.
use crate::ImageShape;
use ::tiff::ColorType;
use ::tiff::decoder::{Decoder, DecodingResult, Limits};
use ::tiff::tags::{SampleFormat, Tag};
use std::io::{BufRead, Read, Seek, SeekFrom};

/// Pages that a file may have.
const MOST_PAGES: usize = 1 << 20;
/// The field that says what a page is, and the bits of a lower resolution and of a mask.
const SUBFILE: (u64, u64) = (254, 0b101);

/// The layout of a file: its byte order, and the bytes of a place.
struct Layout<'a> {
    bytes: &'a [u8],
    little: bool,
    width: usize,
}

/// What a page's directory says.
struct Directory {
    /// The largest number of values that a field says that it has.
    most_values: u64,
    is_part: bool,
    /// Where the next one lies; 0 after the last.
    next: u64,
}

impl<'a> Layout<'a> {
    /// Of a TIFF; none for other files.
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let little = match bytes.get(..2)? {
            b"II" => true,
            b"MM" => false,
            _ => return None,
        };
        let layout = Self { bytes, little, width: 4 };
        // Version 42 counts in four bytes, version 43 in eight.
        match layout.number(2, 2)? {
            42 => Some(layout),
            43 => Some(Self { width: 8, ..layout }),
            _ => None,
        }
    }

    fn number(&self, at: usize, width: usize) -> Option<u64> {
        let word = self.bytes.get(at..at.checked_add(width)?)?;
        let push = |number: u64, &b: &u8| number << 8 | u64::from(b);
        Some(if self.little { word.iter().rev().fold(0, push) } else { word.iter().fold(0, push) })
    }

    /// Where the place of the first directory stands.
    fn first(&self) -> usize {
        self.width
    }

    fn directory(&self, at: u64) -> Option<Directory> {
        let (width, at) = (self.width, usize::try_from(at).ok()?);
        let before = if width == 4 { 2 } else { 8 };
        let n_fields = usize::try_from(self.number(at, before)?).ok()?;
        // A field has a name and a type of two bytes each, its number of values, and these or their
        // place.
        let size = 4 + 2 * width;
        let start = at.checked_add(before)?;
        let fields = || {
            (0..n_fields).map_while(|field| {
                let at = field.checked_mul(size)?.checked_add(start)?;
                Some((self.number(at, 2)?, self.number(at + 4, width)?, at + 4 + width))
            })
        };
        let subfile = fields().find(|(name, ..)| *name == SUBFILE.0);
        let is_part =
            subfile.and_then(|(.., at)| self.number(at, 4)).is_some_and(|kind| kind & SUBFILE.1 != 0);
        let end = n_fields.checked_mul(size)?.checked_add(start)?;
        let most_values = fields().map(|(_, count, _)| count).max().unwrap_or(0);
        Some(Directory { most_values, is_part, next: self.number(end, width).unwrap_or(0) })
    }
}

/// The places of the pages that are images, at least one; none for other files.
pub(crate) fn pages(bytes: &[u8]) -> Option<Vec<u64>> {
    let layout = Layout::of(bytes)?;
    let first = layout.number(layout.first(), layout.width)?;
    let (mut pages, mut at) = (vec![first], first);
    let mut seen = std::collections::HashSet::from([first]);
    while let Some(directory) = layout.directory(at) {
        at = directory.next;
        // A damaged file may lead round in a circle.
        if at == 0 || !seen.insert(at) || pages.len() >= MOST_PAGES {
            break;
        }
        if layout.directory(at).is_some_and(|directory| !directory.is_part) {
            pages.push(at);
        }
    }
    Some(pages)
}

/// The largest number of values that a field of a page, or of the first, says that it has and
/// cannot have; none for other files.
pub(crate) fn impossible_count(bytes: &[u8], page: Option<u64>) -> Option<u64> {
    let layout = Layout::of(bytes)?;
    let at = page.or_else(|| layout.number(layout.first(), layout.width))?;
    let count = layout.directory(at)?.most_values;
    (count > bytes.len() as u64).then_some(count)
}

/// A page of grey floats, which `image` does not decode, and its values if they are wanted;
/// `limit_bytes` is what they may take. None for all others, for damaged ones and for those that
/// are to be turned.
pub(crate) fn grey_floats(
    bytes: &[u8],
    page: Option<u64>,
    limit_bytes: u64,
    with_values: bool,
) -> Option<(ImageShape, Vec<f32>)> {
    Layout::of(bytes)?;
    let mut limits = Limits::default();
    limits.decoding_buffer_size = usize::try_from(limit_bytes).ok()?;
    let mut decoder = Decoder::new(PageReader::new(bytes, page)).ok()?.with_limits(limits);
    let formats: Vec<u16> = decoder.find_tag_unsigned_vec(Tag::SampleFormat).ok()??;
    let orientation: Option<u16> = decoder.find_tag_unsigned(Tag::Orientation).ok()?;
    let is_grey = matches!(decoder.colortype().ok()?, ColorType::Gray(16 | 32 | 64));
    if !is_grey || formats != [SampleFormat::IEEEFP.to_u16()] || orientation.is_some_and(|turn| turn != 1) {
        return None;
    }
    let (width, height) = decoder.dimensions().ok()?;
    let shape = ImageShape::grey(height as usize, width as usize);
    if !with_values {
        return Some((shape, Vec::new()));
    }
    let values = match decoder.read_image().ok()? {
        DecodingResult::F16(values) => values.into_iter().map(f32::from).collect(),
        DecodingResult::F32(values) => values,
        DecodingResult::F64(values) => values.into_iter().map(|x| x as f32).collect(),
        _ => return None,
    };
    (values.len() == shape.n_features()).then_some((shape, values))
}

/// A file of which the header leads to one of its pages.
pub(crate) struct PageReader<'a> {
    bytes: &'a [u8],
    header: Vec<u8>,
    at: u64,
}

impl<'a> PageReader<'a> {
    /// The file as it is where no page is given.
    pub(crate) fn new(bytes: &'a [u8], page: Option<u64>) -> Self {
        let layout = page.and_then(|page| Some((page, Layout::of(bytes)?)));
        let header = layout.map_or_else(Vec::new, |(page, layout)| {
            let (start, width) = (layout.first(), layout.width);
            let mut header = bytes.get(..start + width).unwrap_or_default().to_vec();
            let place = match layout.little {
                true => page.to_le_bytes()[..width].to_vec(),
                false => page.to_be_bytes()[8 - width..].to_vec(),
            };
            if let Some(there) = header.get_mut(start..) {
                there.copy_from_slice(&place);
            }
            header
        });
        Self { bytes, header, at: 0 }
    }
}

impl BufRead for PageReader<'_> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        let at = usize::try_from(self.at).unwrap_or(usize::MAX);
        Ok(match self.header.get(at..) {
            Some(header) if !header.is_empty() => header,
            _ => self.bytes.get(at..).unwrap_or_default(),
        })
    }

    fn consume(&mut self, n: usize) {
        self.at = self.at.saturating_add(n as u64);
    }
}

impl Read for PageReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.fill_buf()?.read(out)?;
        self.consume(n);
        Ok(n)
    }
}

impl Seek for PageReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let mut cursor = std::io::Cursor::new(self.bytes);
        cursor.set_position(self.at);
        self.at = cursor.seek(to)?;
        Ok(self.at)
    }
}
