//! Safetensors files that are written and read a piece at a time, so that no memory need hold the
//! whole.
use crate::io::{sort_notes, unread};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_datasets::whole::WholeFile;
use flate2::Crc;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, View};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Gives the pieces of a tensor, in order.
type Pieces<'a> = Box<dyn Fn(&mut dyn FnMut(&Tensor) -> Result<()>) -> Result<()> + 'a>;

/// A tensor that comes in pieces.
pub(crate) struct Streamed<'a> {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    pieces: Pieces<'a>,
}

impl<'a> Streamed<'a> {
    /// One of f32 whose pieces `pieces` gives, all of them the numbers of the shape in order.
    pub(crate) fn new(
        name: &str,
        shape: &[usize],
        pieces: impl Fn(&mut dyn FnMut(&Tensor) -> Result<()>) -> Result<()> + 'a,
    ) -> Self {
        Self { name: name.to_owned(), dtype: DType::F32, shape: shape.to_vec(), pieces: Box::new(pieces) }
    }

    /// One in one piece.
    pub(crate) fn whole(name: String, t: Tensor) -> Self {
        let (dtype, shape) = (t.dtype(), t.dims().to_vec());
        Self { name, dtype, shape, pieces: Box::new(move |give| give(&t)) }
    }

    /// Has the pieces made, of which nothing is kept: for ranks that pass theirs on.
    pub(crate) fn pass_on(&self) -> Result<()> {
        (self.pieces)(&mut |_| Ok(()))
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_in_bytes()
    }
}

/// Puts tensors in the order in which files have them, that of alignment and names.
pub(crate) fn in_order<'a>(mut all: Vec<Streamed<'a>>) -> Vec<Streamed<'a>> {
    all.sort_by(|a, b| {
        (Reverse(a.dtype.size_in_bytes()), &a.name).cmp(&(Reverse(b.dtype.size_in_bytes()), &b.name))
    });
    all
}

/// Begins a file of these tensors, which are [in order](in_order), with notes in its header: the
/// file, which does not have its name yet, its header, and the checksum of all bytes.
pub(crate) fn written(
    path: &Path,
    tensors: &[Streamed<'_>],
    notes: HashMap<String, String>,
) -> Result<(WholeFile, Vec<u8>, Crc)> {
    let unwritten = |e: &dyn std::fmt::Display| Error::Msg(format!("{}: cannot write: {e}", path.display()));
    let mut end = 0;
    let infos = tensors.iter().map(|of| {
        let start = end;
        end += of.bytes();
        let info =
            TensorInfo { dtype: Dtype::from(of.dtype), shape: of.shape.clone(), data_offsets: (start, end) };
        (of.name.clone(), info)
    });
    let metadata = Metadata::new(Some(notes), infos.collect()).map_err(|e| unwritten(&e))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|e| unwritten(&e))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    sort_notes(&mut text).map_err(|e| unwritten(&e))?;
    let header = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
    let (mut file, mut sum) = (WholeFile::create(path)?, Crc::new());
    let mut put = |bytes: &[u8]| -> Result<()> {
        sum.update(bytes);
        Ok(file.write_all(bytes)?)
    };
    put(&header)?;
    for of in tensors {
        let mut left = of.bytes();
        (of.pieces)(&mut |piece| {
            let piece = piece.to_device(&Device::Cpu)?.contiguous()?;
            let bytes = piece.data();
            left = left.checked_sub(bytes.len()).ok_or_else(|| unwritten(&"a tensor is too long"))?;
            put(&bytes)
        })?;
        if left > 0 {
            return Err(unwritten(&format_args!("{} lacks {left} bytes", of.name)));
        }
    }
    Ok((file, header, sum))
}

/// A file that is read in pieces.
pub(crate) struct InPieces {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Where the numbers begin.
    base: u64,
}

impl InPieces {
    /// Bytes of a header at most, as the format has it.
    const MOST: u64 = 100_000_000;

    /// # Errors
    /// When the file is missing, cut short or not of this format; the message names it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let refused = |e: &dyn std::fmt::Display| unread(path, &format_args!("{e}"));
        let mut file = File::open(path).map_err(|e| refused(&e))?;
        let header = header(path, &mut file)?;
        let (_, text) = header.split_at_checked(8).ok_or_else(|| refused(&"it has no header"))?;
        let metadata: Metadata = serde_json::from_slice(text).map_err(|e| refused(&e))?;
        let base = header.len() as u64;
        let end = metadata
            .offset_keys()
            .into_iter()
            .filter_map(|name| metadata.info(&name))
            .map(|i| i.data_offsets.1);
        let (want, got) = (base + end.max().unwrap_or(0) as u64, file.metadata()?.len());
        if want != got {
            return Err(refused(&format_args!("it must have {want} bytes, got {got}")));
        }
        Ok(Self { path: path.to_owned(), file, metadata, base })
    }

    /// The notes of the header.
    pub(crate) fn notes(&self) -> HashMap<String, String> {
        self.metadata.metadata().clone().unwrap_or_default()
    }

    /// All tensors but those of these names.
    pub(crate) fn all_but(&self, names: &[&str], device: &Device) -> Result<HashMap<String, Tensor>> {
        let wanted = self.metadata.offset_keys().into_iter().filter(|name| !names.contains(&&name[..]));
        let read = |name: String| {
            let info = self.info(&name)?;
            let t = self.entries(info, 0, &info.shape.clone(), device)?;
            Ok((name, t))
        };
        wanted.map(read).collect()
    }

    /// The shape of an f32 tensor.
    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>> {
        let info = self.info(name)?;
        if info.dtype != Dtype::F32 {
            return Err(unread(&self.path, &format_args!("{name} must be f32, got {:?}", info.dtype)));
        }
        Ok(info.shape.clone())
    }

    /// Numbers of a tensor from entry `first` on, as a tensor of this shape.
    pub(crate) fn part(&self, name: &str, first: usize, shape: &[usize], device: &Device) -> Result<Tensor> {
        self.entries(self.info(name)?, first, shape, device)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo> {
        let found = self.metadata.info(name);
        found.ok_or_else(|| unread(&self.path, &format_args!("{name} is missing")))
    }

    fn entries(&self, info: &TensorInfo, first: usize, shape: &[usize], device: &Device) -> Result<Tensor> {
        let dtype = DType::try_from(info.dtype)?;
        let size = dtype.size_in_bytes();
        let (start, end) = info.data_offsets;
        let (at, n) = (start + first * size, shape.iter().product::<usize>() * size);
        if at + n > end {
            return Err(unread(&self.path, &"a part must lie within its tensor"));
        }
        let mut bytes = vec![0; n];
        let mut file = &self.file;
        let read =
            file.seek(SeekFrom::Start(self.base + at as u64)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(|e| unread(&self.path, &e))?;
        Tensor::from_raw_buffer(&bytes, dtype, shape, device)
    }
}

/// The bytes of the header of a file, with those of its length.
pub(crate) fn header(path: &Path, file: &mut File) -> Result<Vec<u8>> {
    let refused = |e: &dyn std::fmt::Display| unread(path, &format_args!("{e}"));
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|e| refused(&e))?;
    let n = u64::from_le_bytes(length);
    if n > InPieces::MOST {
        return Err(refused(&"it has no header of this format"));
    }
    let mut header = length.to_vec();
    file.take(n).read_to_end(&mut header).map_err(|e| refused(&e))?;
    if header.len() as u64 != 8 + n {
        return Err(refused(&"its header is cut short"));
    }
    Ok(header)
}
