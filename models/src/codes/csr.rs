//! Sparse codes as scipy writes a sparse matrix: what `scipy.sparse.load_npz` reads as a
//! `csr_matrix`.
//!
//! | array | type | what |
//! |---|---|---|
//! | `data` | `[nnz]` f32 | coefficients, row by row, in the order of their atoms |
//! | `indices` | `[nnz]` i32 | their atoms |
//! | `indptr` | `[n_rows + 1]` i32, or i64 as `indices` where there are 2³¹ coefficients or more | where each row begins |
//! | `shape` | `[2]` i64 | `n_rows, n_atoms` |
//! | `format` | bytes | `csr` |
use candle::{DType, Error, Result};
use chandlery_ops::codes::SparseCodes;
use npyz::{AutoSerialize, Serialize, TypeStr, WriterBuilder};
use std::io::{Seek, Write};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// The rows of codes one after the other.
struct Rows {
    data: Vec<f32>,
    indices: Vec<i64>,
    indptr: Vec<i64>,
}

impl Rows {
    fn of(codes: &SparseCodes) -> Result<Self> {
        let indices = codes.indices.to_vec2::<u32>()?;
        let values = codes.values.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let count = codes.count.to_vec1::<u32>()?;
        let mut rows = Self { data: Vec::new(), indices: Vec::new(), indptr: vec![0] };
        for ((indices, values), count) in indices.iter().zip(&values).zip(count) {
            let mut row: Vec<_> = indices.iter().zip(values).take(count as usize).collect();
            row.sort_unstable_by_key(|(atom, _)| **atom);
            rows.indices.extend(row.iter().map(|(atom, _)| i64::from(**atom)));
            rows.data.extend(row.iter().map(|(_, value)| **value));
            rows.indptr.push(rows.data.len() as i64);
        }
        Ok(rows)
    }
}

/// Writes codes, on the CPU, to a file. Coefficients that a row does not count are left out.
///
/// # Errors
/// When the disk refuses.
pub fn write(file: impl Write + Seek, codes: &SparseCodes) -> Result<()> {
    let Rows { data, indices, indptr } = Rows::of(codes)?;
    let mut zip = ZipWriter::new(file);
    array(&mut zip, "data", &[data.len()], data.iter().copied())?;
    // As scipy chooses them.
    if i32::try_from(data.len()).is_ok() {
        array(&mut zip, "indices", &[indices.len()], indices.iter().map(|&i| i as i32))?;
        array(&mut zip, "indptr", &[indptr.len()], indptr.iter().map(|&i| i as i32))?;
    } else {
        array(&mut zip, "indices", &[indices.len()], indices.iter().copied())?;
        array(&mut zip, "indptr", &[indptr.len()], indptr.iter().copied())?;
    }
    let shape = [codes.count.elem_count() as i64, codes.n_atoms as i64];
    array(&mut zip, "shape", &[2], shape.into_iter())?;
    let bytes: TypeStr = "|S3".parse().map_err(Error::wrap)?;
    let text = npyz::WriteOptions::<[u8]>::new().dtype(npyz::DType::Plain(bytes)).shape(&[]);
    zip.start_file("format.npy", options())?;
    let mut out = text.writer(&mut zip).begin_nd()?;
    out.push(b"csr".as_slice())?;
    out.finish()?;
    zip.finish()?.flush()?;
    Ok(())
}

fn options() -> SimpleFileOptions {
    SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated).large_file(true)
}

/// Adds an array to an archive.
fn array<T: AutoSerialize + Serialize>(
    zip: &mut ZipWriter<impl Write + Seek>,
    name: &str,
    shape: &[usize],
    values: impl Iterator<Item = T>,
) -> Result<()> {
    zip.start_file(format!("{name}.npy"), options())?;
    let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
    let mut out = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(zip).begin_nd()?;
    out.extend(values)?;
    Ok(out.finish()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::{Device::Cpu, Tensor};
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn the_archive_is_what_scipy_reads() {
        let codes = SparseCodes {
            indices: Tensor::new(&[[4u32, 1], [2, 0], [0, 0]], &Cpu).unwrap(),
            values: Tensor::new(&[[1f32, -2.], [3., 0.], [0., 0.]], &Cpu).unwrap(),
            count: Tensor::new(&[2u32, 1, 0], &Cpu).unwrap(),
            n_atoms: 5,
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("codes.npz");
        write(File::create(&path).unwrap(), &codes).unwrap();
        let mut zip = zip::ZipArchive::new(File::open(&path).unwrap()).unwrap();
        let mut bytes = |name: &str| {
            let mut bytes = Vec::new();
            zip.by_name(name).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        };
        let of = |bytes: Vec<u8>| npyz::NpyFile::new(std::io::Cursor::new(bytes)).unwrap();
        assert_eq!(of(bytes("data.npy")).into_vec::<f32>().unwrap(), [-2., 1., 3.]);
        assert_eq!(of(bytes("indices.npy")).into_vec::<i32>().unwrap(), [1, 4, 2]);
        assert_eq!(of(bytes("indptr.npy")).into_vec::<i32>().unwrap(), [0, 2, 3, 3]);
        assert_eq!(of(bytes("shape.npy")).into_vec::<i64>().unwrap(), [3, 5]);
        let format = of(bytes("format.npy"));
        assert_eq!((format.shape(), format.dtype().descr()), (&[][..], "'|S3'".to_owned()));
        assert!(bytes("format.npy").ends_with(b"csr"));
    }
}
