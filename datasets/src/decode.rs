//! Encoded images to planes of bytes, or of floats where one of them has more than eight bits a
//! value.
use crate::form::{Form, Pixels, Values};
use crate::mapped::MappedFile;
use crate::options::Colour;
use crate::pixels::{decode, form, pages};
use crate::sink::RowSink;
use crate::{Error, ImageShape, Result, RowType, Source};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name endings of the image files that can be decoded, in lower case.
pub(crate) const EXTENSIONS: [&str; 12] =
    ["png", "jpg", "jpeg", "bmp", "tif", "tiff", "webp", "gif", "pgm", "ppm", "pbm", "pnm"];

/// Whether the name ends as an image's does.
pub(crate) fn is_image(path: &Path) -> bool {
    path.extension().is_some_and(|e| EXTENSIONS.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

/// Bytes of decoded images that are held beside those that are stored.
const DECODED_BYTES: usize = 256 << 20;
/// Images that are decoded at a time, at most.
const MOST_AT_ONCE: usize = 1024;

/// An encoded image.
pub(crate) struct Encoded<B> {
    /// Its name, for errors.
    pub(crate) at: String,
    pub(crate) bytes: B,
    /// Where the page of a TIFF lies that is meant; none for the first or only one.
    pub(crate) page: Option<u64>,
}

impl<B: AsRef<[u8]>> Encoded<B> {
    fn form(&self, colour: Colour) -> Result<Form> {
        form(&self.at, self.bytes.as_ref(), self.page, colour)
    }

    fn decode(&self, colour: Colour) -> Result<Pixels> {
        decode(&self.at, self.bytes.as_ref(), self.page, colour)
    }
}

/// Values of images on their way: bytes, until one image has floats.
#[derive(Debug)]
enum Store {
    Bytes(RowSink<u8>),
    Floats(RowSink<f32>),
}

impl Store {
    fn push(&mut self, values: &Values, limit_bytes: usize) -> Result<()> {
        /// Values that are converted at a time.
        const BLOCK: usize = 1 << 16;
        let convert = |sink: &mut RowSink<f32>, bytes: &[u8]| {
            let scaled = |block: &[u8]| block.iter().map(|&x| f32::from(x) / 255.).collect::<Vec<_>>();
            bytes.chunks(BLOCK).try_for_each(|block| sink.push(&scaled(block)))
        };
        match (&mut *self, values) {
            (Self::Bytes(sink), Values::Bytes(values)) => sink.push(values),
            (Self::Floats(sink), Values::Floats(values)) => sink.push(values),
            (Self::Floats(sink), Values::Bytes(values)) => convert(sink, values),
            (Self::Bytes(sink), Values::Floats(values)) => {
                let before = std::mem::replace(sink, RowSink::new(limit_bytes)).into_file()?;
                let mut floats = RowSink::new(limit_bytes);
                convert(&mut floats, before.bytes())?;
                floats.push(values)?;
                *self = Self::Floats(floats);
                Ok(())
            }
        }
    }
}

/// Gathers images of one shape as rows.
#[derive(Debug)]
pub(crate) struct ImageRows {
    colour: Colour,
    limit_bytes: usize,
    first: Option<(String, Form)>,
    store: Store,
}

impl ImageRows {
    pub(crate) fn new(colour: Colour, limit_bytes: usize) -> Self {
        Self { colour, limit_bytes, first: None, store: Store::Bytes(RowSink::new(limit_bytes)) }
    }

    /// Refuses a batch of which an image has another shape than the first of all, by their headers.
    pub(crate) fn check<T: Sync, B: AsRef<[u8]>>(
        &mut self,
        batch: &[T],
        load: impl Fn(usize, &T) -> Result<Encoded<B>> + Sync,
    ) -> Result<()> {
        let Some(first) = batch.first().filter(|_| self.first.is_none()) else {
            return self.check_all(batch, load);
        };
        let encoded = load(0, first)?;
        let form = encoded.form(self.colour)?;
        self.first = Some((encoded.at, form));
        self.check_all(batch, load)
    }

    fn check_all<T: Sync, B: AsRef<[u8]>>(
        &self,
        batch: &[T],
        load: impl Fn(usize, &T) -> Result<Encoded<B>> + Sync,
    ) -> Result<()> {
        let wrong = |(i, item)| {
            let check = || {
                let encoded = load(i, item)?;
                self.admit(&encoded.at, encoded.form(self.colour)?)
            };
            check().err()
        };
        batch.par_iter().enumerate().find_map_first(wrong).map_or(Ok(()), Err)
    }

    fn admit(&self, at: &str, form: Form) -> Result<()> {
        match &self.first {
            Some((first, of_first)) if of_first.shape != form.shape => Err(Error::format(
                at,
                format!("is {} but {first} is {} (height x width x channels)", form.shape, of_first.shape),
                "make all images of a data set the same, or draw patches from them instead",
            )),
            _ => Ok(()),
        }
    }

    /// Decodes a batch in parallel, some at a time, and appends it in order; [`check`](Self::check)
    /// was called with it.
    pub(crate) fn extend<T: Sync, B: AsRef<[u8]>>(
        &mut self,
        batch: &[T],
        load: impl Fn(usize, &T) -> Result<Encoded<B>> + Sync,
    ) -> Result<()> {
        let of_one = self.first.as_ref().map_or(1, |(_, form)| form.decoded_bytes());
        let at_once = (DECODED_BYTES / of_one.max(1)).clamp(1, MOST_AT_ONCE);
        for (k, some) in batch.chunks(at_once).enumerate() {
            let one = |(i, item)| {
                let encoded = load(k * at_once + i, item)?;
                Ok((encoded.decode(self.colour)?, encoded.at))
            };
            let decoded: Vec<(Pixels, String)> =
                some.par_iter().enumerate().map(one).collect::<Result<_>>()?;
            for (pixels, at) in decoded {
                self.admit(&at, pixels.form)?;
                self.store.push(&pixels.values, self.limit_bytes)?;
            }
        }
        Ok(())
    }

    /// The rows and the shape of each; `at` names their origin in errors.
    pub(crate) fn finish(self, at: &str) -> Result<(Arc<dyn Source>, ImageShape)> {
        let Some((_, Form { shape, .. })) = self.first else {
            return Err(Error::format(at, "holds no images", "give at least one"));
        };
        let rows = match self.store {
            Store::Bytes(sink) => sink.finish(at, shape.n_features())?,
            Store::Floats(sink) => sink.finish(at, shape.n_features())?,
        };
        Ok((rows, shape))
    }
}

/// Gathers images of any shapes: their values lie one after the other, in memory up to a limit,
/// then in a temporary file.
#[derive(Debug)]
pub(crate) struct AnyImages {
    colour: Colour,
    limit_bytes: usize,
    /// Names and shapes.
    images: Vec<(String, ImageShape)>,
    store: Store,
}

impl AnyImages {
    pub(crate) fn new(colour: Colour, limit_bytes: usize) -> Self {
        Self { colour, limit_bytes, images: Vec::new(), store: Store::Bytes(RowSink::new(limit_bytes)) }
    }

    /// Decodes a batch in parallel, some at a time by their headers, and appends it in order;
    /// `name` is what an image is called in the set.
    pub(crate) fn extend<T: Sync, B: AsRef<[u8]> + Send + Sync>(
        &mut self,
        batch: &[T],
        load: impl Fn(usize, &T) -> Result<Encoded<B>> + Sync,
        name: impl Fn(usize) -> String,
    ) -> Result<()> {
        let colour = self.colour;
        let headed = |(i, item)| {
            let encoded = load(i, item)?;
            Ok((encoded.form(colour)?.decoded_bytes(), encoded))
        };
        let encoded: Vec<(usize, Encoded<B>)> =
            batch.par_iter().enumerate().map(headed).collect::<Result<_>>()?;
        let (mut start, mut end, mut sum) = (0, 0, 0usize);
        while start < encoded.len() {
            while let Some((bytes, _)) = encoded.get(end)
                && (end == start || sum.saturating_add(*bytes) <= DECODED_BYTES)
            {
                (end, sum) = (end + 1, sum.saturating_add(*bytes));
            }
            let some = encoded.get(start..end).unwrap_or_default();
            let decoded: Vec<Pixels> =
                some.par_iter().map(|(_, encoded)| encoded.decode(colour)).collect::<Result<_>>()?;
            for (i, pixels) in (start..).zip(decoded) {
                self.store.push(&pixels.values, self.limit_bytes)?;
                self.images.push((name(i), pixels.form.shape));
            }
            (start, sum) = (end, 0);
        }
        Ok(())
    }

    /// What was gathered.
    pub(crate) fn finish(self) -> Result<Gathered> {
        let (file, row_type) = match self.store {
            Store::Bytes(sink) => (sink.into_file()?, RowType::U8),
            Store::Floats(sink) => (sink.into_file()?, RowType::F32),
        };
        Ok(Gathered { images: self.images, file, row_type })
    }
}

/// Images of any shapes.
pub(crate) struct Gathered {
    /// Names and shapes.
    pub(crate) images: Vec<(String, ImageShape)>,
    /// The values of all, of this type.
    pub(crate) file: MappedFile,
    pub(crate) row_type: RowType,
}

/// An image of a folder: a file, or a page of one.
#[derive(Debug, Clone)]
pub(crate) struct ImageFile {
    pub(crate) path: PathBuf,
    /// The number of the page, from 1, and where it lies.
    pub(crate) page: Option<(usize, u64)>,
}

impl ImageFile {
    /// The images of a file: each page of a TIFF that has several, else one.
    pub(crate) fn of(path: &Path) -> Result<Vec<Self>> {
        let is_tiff = path
            .extension()
            .is_some_and(|e| ["tif", "tiff"].iter().any(|known| e.eq_ignore_ascii_case(known)));
        let pages = match is_tiff {
            true => pages(MappedFile::open(path)?.bytes()),
            false => None,
        };
        let page = |page| Self { path: path.to_owned(), page };
        Ok(match pages {
            Some(pages) if pages.len() > 1 => (1..).zip(pages).map(|at| page(Some(at))).collect(),
            _ => vec![page(None)],
        })
    }

    /// What it is called: its path, with the page.
    pub(crate) fn name(&self, path: &Path) -> String {
        match self.page {
            Some((number, _)) => format!("{}, page {number}", path.display()),
            None => path.display().to_string(),
        }
    }

    pub(crate) fn load(&self) -> Result<Encoded<MappedFile>> {
        let bytes = match self.page {
            // Each page comes from the same file.
            Some(_) => MappedFile::open(&self.path)?,
            None => MappedFile::in_memory(std::fs::read(&self.path).map_err(|e| Error::io(&self.path, e))?),
        };
        Ok(Encoded { at: self.name(&self.path), bytes, page: self.page.map(|(_, at)| at) })
    }
}
