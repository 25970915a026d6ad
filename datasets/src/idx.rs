//! The idx format of MNIST: a magic number, sizes as big-endian u32, then bytes; plain or gzipped.
//!
//! ```text
//! 00 00 08 d | size_1 … size_d | values
//! ```
//! 08 says unsigned bytes, the only type read here; `d` is the number of dimensions: 1 for labels,
//! 3 for images.
use crate::listing::name_of;
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

/// A file of images in a folder.
#[derive(Debug, Clone)]
struct Part {
    path: PathBuf,
    /// What the name says beside that it is an idx file of images of a split: `emnist`, `letters`.
    set: Vec<String>,
    /// `train`, `test`, `val`, …
    split: String,
}

impl Part {
    /// By the names that MNIST and related data sets use; none for other files.
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        if !is_idx_name(&name) || !name.contains("images") {
            return None;
        }
        let words = name.split(['-', '_', '.', ' ']);
        let (mut set, mut split) = (Vec::new(), "train");
        for word in words {
            match word {
                "t10k" => split = "test",
                _ if word.starts_with("test") || SPLITS.contains(&word) => split = word,
                "" | "gz" | "idx" | "ubyte" => {}
                _ if word.contains("images") || word.starts_with("idx") => {}
                other => set.push(other.to_owned()),
            }
        }
        Some(Self { path: path.to_owned(), set, split: split.to_owned() })
    }

    fn is_packed(&self) -> bool {
        is_gzip(&self.path)
    }
}

/// Names of splits in names of files; `t10k` is a test split.
const SPLITS: [&str; 6] = ["train", "training", "val", "valid", "validation", "dev"];

/// The files of images in a folder.
#[derive(Debug)]
pub(crate) struct IdxFolder {
    parts: Vec<Part>,
}

impl IdxFolder {
    /// Finds image files among `files`; none when there are none. Beside FILE.gz, FILE need not be
    /// unpacked again.
    pub(crate) fn find(files: &[PathBuf]) -> Option<Self> {
        let mut parts: Vec<Part> = Vec::new();
        for part in files.iter().filter_map(|path| Part::of(path)) {
            let same = |known: &&mut Part| {
                (&known.set, &known.split) == (&part.set, &part.split)
                    && known.is_packed() != part.is_packed()
            };
            match parts.iter_mut().find(same) {
                Some(known) if known.is_packed() => *known = part,
                Some(_) => {}
                None => parts.push(part),
            }
        }
        (!parts.is_empty()).then_some(Self { parts })
    }

    /// Opens what [`IdxFolder::find`] found.
    pub(crate) fn open(mut self, folder: &Path, options: &DataOptions) -> Result<Dataset> {
        self.choose_set(folder, options)?;
        let train = match &options.train_split {
            Some(wanted) => self.split(folder, wanted)?,
            None => match (self.one_of(folder, &["train", "training"])?, self.parts.as_slice()) {
                (Some(train), _) => train,
                (None, [only]) if only.split != "test" => only,
                _ => {
                    return Err(Error::format(
                        folder.display(),
                        "holds idx files, but no training images",
                        "add train-images-idx3-ubyte or train-images-idx3-ubyte.gz, or choose a file by `DataOptions::train_split`",
                    ));
                }
            },
        };
        let test = match &options.test_split {
            Some(wanted) => Some(self.split(folder, wanted)?),
            None => {
                let of_name = |name: &&str| self.one_of(folder, &[name]).transpose();
                let usual = ["test", "validation", "valid", "val", "dev"];
                usual.iter().filter_map(of_name).next().transpose()?.filter(|test| test.path != train.path)
            }
        };
        let train = open_split(&train.path, options)?;
        let test = test.map(|part| open_split(&part.path, options)).transpose()?;
        Dataset::new(folder.display().to_string(), train, test, None)
    }

    /// Keeps the files of the set that was asked for, or of the only one.
    fn choose_set(&mut self, folder: &Path, options: &DataOptions) -> Result<()> {
        let mut sets: Vec<Vec<String>> = self.parts.iter().map(|part| part.set.clone()).collect();
        sets.sort();
        sets.dedup();
        // What all names have in common tells nothing, such as emnist.
        let common = |word: &String| sets.len() > 1 && sets.iter().all(|set| set.contains(word));
        let name = |set: &Vec<String>| {
            let own: Vec<&str> = set.iter().filter(|word| !common(word)).map(String::as_str).collect();
            if own.is_empty() { set.join("-") } else { own.join("-") }
        };
        let names: Vec<String> = sets.iter().map(name).collect();
        let chosen = match &options.subset {
            Some(wanted) => {
                let is_wanted = |(set, name): &(&Vec<String>, &String)| {
                    wanted.eq_ignore_ascii_case(name) || wanted.eq_ignore_ascii_case(&set.join("-"))
                };
                let found = sets.iter().zip(&names).find(is_wanted).map(|(set, _)| set.clone());
                found.ok_or_else(|| Error::missing(folder.display(), "subset", wanted, &names))?
            }
            None => match sets.as_slice() {
                [only] => only.clone(),
                _ => {
                    let shown =
                        names.iter().map(|name| if name.is_empty() { "(no name)" } else { name.as_str() });
                    let (last, shown) = (names.last().map_or("", String::as_str), shown.collect::<Vec<_>>());
                    return Err(Error::format(
                        folder.display(),
                        format!("holds {} sets of idx files: {}", names.len(), shown.join(", ")),
                        format!("choose one by `DataOptions::subset`, such as {last}"),
                    ));
                }
            },
        };
        self.parts.retain(|part| part.set == chosen);
        Ok(())
    }

    /// The part that goes by one of these names, which must be one.
    fn one_of(&self, folder: &Path, names: &[&str]) -> Result<Option<&Part>> {
        let mut parts = self.parts.iter().filter(|part| names.contains(&part.split.as_str()));
        match (parts.next(), parts.next()) {
            (Some(one), Some(other)) => Err(Error::format(
                folder.display(),
                format!("holds two files of one split: {} and {}", name_of(&one.path), name_of(&other.path)),
                "keep one of them, or choose it by its name with `DataOptions::train_split` or `DataOptions::test_split`",
            )),
            (one, _) => Ok(one),
        }
    }

    /// The part of this name: of a split, or of a file.
    fn split(&self, folder: &Path, wanted: &str) -> Result<&Part> {
        if let Some(part) = self.parts.iter().find(|part| name_of(&part.path) == wanted) {
            return Ok(part);
        }
        let lower = wanted.to_ascii_lowercase();
        let lower = if lower == "t10k" { "test" } else { &lower };
        let there = || self.parts.iter().map(|part| part.split.as_str());
        self.one_of(folder, &[lower])?
            .ok_or_else(|| Error::missing(folder.display(), "split", wanted, there()))
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
    let Some(labels_path) = labels_beside(path).filter(|_| options.reads_labels()) else {
        if options.reads_labels() {
            tracing::warn!(file = %path.display(), "no labels beside the images");
        }
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

    /// Sizes by the header, which must announce bytes in `min_dims` dimensions; more only where it
    /// is more than one.
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

    /// Hands the values to `take` a block at a time, and checks that nothing is missing and nothing
    /// follows.
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
