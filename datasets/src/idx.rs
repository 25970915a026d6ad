//! The idx format of MNIST: a magic number, sizes as big-endian u32, then bytes; plain or gzipped.
//!
//! ```text
//! 00 00 08 d | size_1 … size_d | values
//! ```
//! 08 says unsigned bytes, the only type read here; `d` is the number of dimensions: 1 for labels, 3 for images.
use crate::mapped::{MappedFile, MappedRows, check_extent};
use crate::options::DataOptions;
use crate::sink::RowSink;
use crate::{Dataset, Error, ImageShape, Result, RowType, Source, Split, count};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const REMEDY: &str = "download or copy the file again";

/// Whether a file name, in lower case, is one that idx files have.
pub(crate) fn is_idx_name(lower: &str) -> bool {
    let name = lower.strip_suffix(".gz").unwrap_or(lower);
    name.ends_with("-ubyte") || name.ends_with(".idx")
}

/// Where the parts of a data set lie in a folder.
#[derive(Debug, Default)]
pub(crate) struct IdxFolder {
    train: Option<PathBuf>,
    test: Option<PathBuf>,
}

impl IdxFolder {
    /// Finds image files among `files` by the names that MNIST and related data sets use; none when there are none.
    pub(crate) fn find(files: &[PathBuf]) -> Option<Self> {
        let mut found = Self::default();
        for path in files {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let name = name.to_ascii_lowercase();
            if !is_idx_name(&name) || !name.contains("images") {
                continue;
            }
            let slot = match name.contains("t10k") || name.contains("test") {
                true => &mut found.test,
                false => &mut found.train,
            };
            // Beside FILE.gz, FILE need not be unpacked again.
            if slot.is_none() || !name.ends_with(".gz") {
                *slot = Some(path.clone());
            }
        }
        (found.train.is_some() || found.test.is_some()).then_some(found)
    }

    /// Opens what [`IdxFolder::find`] found.
    pub(crate) fn open(self, folder: &Path, options: &DataOptions) -> Result<Dataset> {
        let Some(train) = self.train else {
            return Err(Error::format(
                folder.display(),
                "holds idx files, but no training images",
                "add train-images-idx3-ubyte or train-images-idx3-ubyte.gz",
            ));
        };
        let train = open_split(&train, options)?;
        let test = self.test.map(|path| open_split(&path, options)).transpose()?;
        Dataset::new(folder.display().to_string(), train, test, None)
    }
}

/// Opens one file of images, and the labels that lie beside it.
pub(crate) fn open_file(path: &Path, options: &DataOptions) -> Result<Dataset> {
    Dataset::new(path.display().to_string(), open_split(path, options)?, None, None)
}

fn open_split(path: &Path, options: &DataOptions) -> Result<Split> {
    options.refuse_columns(path.display(), "an idx file holds one array")?;
    options.refuse_labels(path.display(), "an idx file has its labels in a file beside it")?;
    let (rows, image) = read_images(path, options.memory_limit())?;
    let n_rows = rows.n_samples();
    let Some(labels_path) = labels_beside(path) else {
        tracing::warn!(file = %path.display(), "no labels beside the images");
        return Split::new(rows, None)?.with_image(image);
    };
    let at = format!("{} and {}", path.display(), labels_path.display());
    let labels = read_labels(&labels_path)?;
    Split::join(at, rows, n_rows, Some(labels))?.with_image(image)
}

/// `train-images-idx3-ubyte[.gz]` has its labels in `train-labels-idx1-ubyte[.gz]`.
fn labels_beside(images: &Path) -> Option<PathBuf> {
    let name = images.file_name()?.to_str()?;
    let plain = name.strip_suffix(".gz").unwrap_or(name);
    let labels = plain.replace("images", "labels").replace("idx3", "idx1");
    if labels == plain {
        return None;
    }
    [labels.clone(), format!("{labels}.gz")]
        .into_iter()
        .map(|name| images.with_file_name(name))
        .find(|path| path.is_file())
}

/// Rows of the images, and their shape when there are three dimensions.
pub(crate) fn read_images(path: &Path, limit_bytes: usize) -> Result<(Arc<dyn Source>, Option<ImageShape>)> {
    let at = path.display().to_string();
    let image_of = |dims: &[usize]| match *dims {
        [_, height, width] => Some(ImageShape::grey(height, width)),
        _ => None,
    };
    if is_gzip(path) {
        let mut reader = Reader::open(path)?;
        let dims = reader.header(2)?;
        let (n, n_features) = extent(&at, &dims)?;
        check_extent(&at, n, n_features)?;
        let mut sink = RowSink::new(limit_bytes);
        reader.body(n, n_features, &mut |bytes| sink.push(bytes))?;
        return Ok((sink.finish(&at, n_features)?, image_of(&dims)));
    }
    let dims = Reader::open(path)?.header(2)?;
    let (n, n_features) = extent(&at, &dims)?;
    let start = 4 + 4 * dims.len();
    let rows = MappedRows::new(&at, MappedFile::open(path)?, start, n, n_features, RowType::U8)?;
    Ok((Arc::new(rows), image_of(&dims)))
}

fn read_labels(path: &Path) -> Result<Vec<u32>> {
    let mut reader = Reader::open(path)?;
    let dims = reader.header(1)?;
    let (n, per_row) = extent(&path.display().to_string(), &dims)?;
    let mut labels = Vec::new();
    reader.body(n, per_row, &mut |bytes| {
        labels.extend(bytes.iter().map(|&b| u32::from(b)));
        Ok(())
    })?;
    Ok(labels)
}

/// Rows and values a row; the product of header sizes need not fit a usize.
fn extent(at: &str, dims: &[usize]) -> Result<(usize, usize)> {
    let (n, rest) = dims.split_first().map_or((0, dims), |(n, rest)| (*n, rest));
    rest.iter()
        .try_fold(1usize, |product, &d| product.checked_mul(d))
        .filter(|per_row| per_row.checked_mul(n).is_some())
        .map(|per_row| (n, per_row))
        .ok_or_else(|| Error::format(at, format!("wrong header: sizes {dims:?} are beyond any file"), REMEDY))
}

fn is_gzip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// A file being read, unpacked on the way when its name ends in `.gz`.
struct Reader<'a> {
    path: &'a Path,
    bytes: Box<dyn Read>,
}

impl<'a> Reader<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let file = BufReader::new(File::open(path).map_err(|e| Error::io(path, e))?);
        let bytes: Box<dyn Read> = match is_gzip(path) {
            true => Box::new(MultiGzDecoder::new(file)),
            false => Box::new(file),
        };
        Ok(Self { path, bytes })
    }

    /// Sizes by the header, which must announce bytes in `min_dims` dimensions; more only where it is more than one.
    fn header(&mut self, min_dims: usize) -> Result<Vec<usize>> {
        let mut word = [0u8; 4];
        self.fill(&mut word, "header")?;
        let n_dims = usize::from(word[3]);
        let fits = if min_dims == 1 { n_dims == 1 } else { (min_dims..=4).contains(&n_dims) };
        if word[..3] != [0, 0, 8] || !fits {
            let want = if min_dims == 1 { "0x00000801 for labels" } else { "0x00000803 for images" };
            return Err(Error::format(
                self.path.display(),
                format!("wrong magic number 0x{:08x}, want {want}", u32::from_be_bytes(word)),
                "give an idx file of unsigned bytes",
            ));
        }
        (0..n_dims)
            .map(|_| {
                self.fill(&mut word, "header")?;
                Ok(u32::from_be_bytes(word) as usize)
            })
            .collect()
    }

    /// Hands the values to `take` a block at a time, and checks that nothing is missing and nothing follows.
    fn body(&mut self, n: usize, per_row: usize, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let total = n * per_row;
        let mut block = vec![0u8; total.min(1 << 20)];
        let mut done = 0;
        while done < total {
            let want = block.len().min(total - done);
            let got = self.read(&mut block[..want])?;
            if got == 0 {
                return Err(self.truncated(format!(
                    "the header says {} of {}, {} there",
                    count(n, "row"),
                    count(per_row, "byte"),
                    if done == 1 { "1 byte is".to_owned() } else { format!("{done} bytes are") }
                )));
            }
            take(&block[..got])?;
            done += got;
        }
        // Reading on to the end has the decoder check its checksum.
        let mut rest = [0u8; 1];
        if self.read(&mut rest)? != 0 {
            return Err(Error::format(
                self.path.display(),
                format!("more bytes than the {} of {per_row} that its header says", count(n, "row")),
                REMEDY,
            ));
        }
        Ok(())
    }

    fn fill(&mut self, mut out: &mut [u8], what: &str) -> Result<()> {
        while !out.is_empty() {
            match self.read(out)? {
                0 => return Err(self.truncated(format!("the file ends within its {what}"))),
                n => out = &mut out[n..],
            }
        }
        Ok(())
    }

    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        loop {
            match self.bytes.read(out) {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Err(self.truncated("the compressed data ends early".to_owned()));
                }
                Err(e) if is_gzip(self.path) => {
                    return Err(Error::format(
                        self.path.display(),
                        format!("cannot be unpacked: {e}"),
                        REMEDY,
                    ));
                }
                Err(e) => return Err(Error::io(self.path, e)),
            }
        }
    }

    fn truncated(&self, how: String) -> Error {
        Error::format(self.path.display(), format!("truncated: {how}"), REMEDY)
    }
}
