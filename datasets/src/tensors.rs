//! A `.safetensors` file: a tensor of rows, perhaps one of labels, perhaps both again for testing.
//! Tensors are read as arrays of [`npy`](crate::npy) are.
use crate::labels::Labels;
use crate::mapped::MappedFile;
use crate::named::{Named, Rows};
use crate::npy::Array;
use crate::options::DataOptions;
use crate::{Dataset, Error, Result};
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use std::path::Path;

/// Opens the tensors.
pub(crate) fn open(path: &Path, options: &DataOptions) -> Result<Dataset> {
    crate::named::open(&Tensors::open(path)?, options)
}

struct Tensors {
    at: String,
    file: MappedFile,
    metadata: Metadata,
    /// Where the first tensor's bytes begin.
    start: usize,
}

impl Tensors {
    fn open(path: &Path) -> Result<Self> {
        let at = path.display().to_string();
        let file = MappedFile::open(path)?;
        let bad = |what: String| Error::format(&at, what, "copy or make the file again");
        // `deserialize` also checks that header and file agree in length, which `read_metadata`
        // leaves out.
        let read = SafeTensors::deserialize(file.bytes())
            .and_then(|_| SafeTensors::read_metadata(file.bytes()))
            .map_err(|e| bad(format!("not a whole .safetensors file: {e}")));
        let (n, metadata) = read?;
        Ok(Self { at, file, metadata, start: 8 + n })
    }

    fn array(&self, name: &str) -> Result<Array> {
        let info = self.metadata.info(name);
        let info = info.ok_or_else(|| Error::missing(&self.at, Self::KIND, name, self.names()))?;
        let (from, to) = info.data_offsets;
        let at = format!("{}, {} '{name}'", self.at, Self::KIND);
        let (file, place) = (self.file.clone(), self.start + from..self.start + to);
        Ok(Array::new(at, file, numpy_name(info.dtype), place, info.shape.clone()))
    }
}

/// How NumPy writes a type, but for those that it does not have.
fn numpy_name(dtype: Dtype) -> String {
    match dtype {
        Dtype::BOOL => "|b1",
        Dtype::U8 => "|u1",
        Dtype::I8 => "|i1",
        Dtype::U16 => "<u2",
        Dtype::I16 => "<i2",
        Dtype::U32 => "<u4",
        Dtype::I32 => "<i4",
        Dtype::U64 => "<u8",
        Dtype::I64 => "<i8",
        Dtype::F16 => "<f2",
        Dtype::F32 => "<f4",
        Dtype::F64 => "<f8",
        other => return format!("{other:?}"),
    }
    .to_owned()
}

impl Named for Tensors {
    const KIND: &'static str = "tensor";

    fn at(&self) -> &str {
        &self.at
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.metadata.tensors().into_keys().collect();
        names.sort_unstable();
        names
    }

    fn rank(&self, name: &str) -> usize {
        self.metadata.info(name).map_or(0, |info| info.shape.len())
    }

    fn rows(&self, name: &str, options: &DataOptions) -> Result<Rows> {
        self.array(name)?.rows(options)
    }

    fn labels(&self, name: &str) -> Result<Labels> {
        self.array(name)?.labels()
    }
}
