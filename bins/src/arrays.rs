//! Matrices as files that other programs read: `.npy`, `.csv` and `.safetensors`; `-` is standard
//! output, as `.csv`.
use crate::report::{is_stdout, to_stdout};
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Tensor};
use chandlery::io::save_tensors;
use chandlery_datasets::count;
use chandlery_datasets::whole::write_whole;
use npyz::WriterBuilder;
use rayon::prelude::*;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Lines of `.csv` that a thread makes at a time.
const LINES: usize = 1024;

/// A format that [`write()`] knows, told by the extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// NumPy's: one array, no labels. Written as rows come, so that it may be larger than the
    /// memory.
    Npy,
    /// A line for each row under a header of `f0`, `f1`, …; a last column `label` where there are
    /// labels. Written as rows come.
    Csv,
    /// Named tensors, gathered in memory.
    Safetensors,
}

impl Format {
    /// The format of a file by its name.
    ///
    /// # Errors
    /// When the extension is none of these; to be asked before hours of work, not after.
    pub fn of(path: &Path) -> Result<Self> {
        if is_stdout(path) {
            return Ok(Self::Csv);
        }
        match path.extension().and_then(|e| e.to_str()) {
            Some("npy") => Ok(Self::Npy),
            Some("csv") => Ok(Self::Csv),
            Some("safetensors") => Ok(Self::Safetensors),
            _ => bail!("{}: the name must end in .npy, .csv or .safetensors", path.display()),
        }
    }

    /// Whether it has a place for labels.
    pub fn has_labels(self) -> bool {
        self != Self::Npy
    }
}

/// Writes the matrix `[n_rows, n_columns]` whose blocks of rows `next` gives until it gives `None`,
/// as f32, and where the format has a place for them its labels, `[n_rows]`, as u32.
///
/// `.npy` holds the matrix alone; `.csv` has a column for the labels; `.safetensors` holds the
/// matrix as `features` and the labels as `labels`.
///
/// # Errors
/// When the extension is none of these, a block is not `[_, n_columns]`, they do not add up to
/// `n_rows`, `next` fails, or the disk refuses.
pub fn write(
    path: &Path,
    (n_rows, n_columns): (usize, usize),
    mut next: impl FnMut() -> Result<Option<Tensor>>,
    labels: Option<&[u32]>,
) -> Result<()> {
    let mut written = 0;
    let mut checked = || -> Result<Option<Tensor>> {
        let Some(block) = next()? else {
            ensure!(written == n_rows, "there must be {}, got {written}", count(n_rows, "row"));
            return Ok(None);
        };
        let (rows, columns) = block.dims2()?;
        written += rows;
        ensure!(
            columns == n_columns && written <= n_rows,
            "blocks must add up to [{n_rows}, {n_columns}], got [{written}, {columns}]"
        );
        Ok(Some(block.to_dtype(DType::F32)?.to_device(&candle::Device::Cpu)?))
    };
    match Format::of(path)? {
        Format::Npy => write_whole(path, |file| {
            let mut npy = npyz::WriteOptions::new()
                .default_dtype()
                .shape(&[n_rows as u64, n_columns as u64])
                .writer(file)
                .begin_nd()?;
            while let Some(block) = checked()? {
                npy.extend(block.flatten_all()?.to_vec1::<f32>()?)?;
            }
            Ok(npy.finish()?)
        }),
        Format::Csv => {
            let mut write = |out: &mut dyn Write| {
                write_header(out, n_columns, labels.is_some())?;
                let mut labels = labels.unwrap_or_default();
                while let Some(block) = checked()? {
                    let rows = block.to_vec2::<f32>()?;
                    let (of_block, rest) = labels.split_at(rows.len().min(labels.len()));
                    labels = rest;
                    let parts = rows.par_chunks(LINES).enumerate();
                    let text = |(part, rows): (usize, &[Vec<f32>])| -> Result<Vec<u8>> {
                        let mut text = Vec::new();
                        for (row, at) in rows.iter().zip(part * LINES..) {
                            write_row(&mut text, row, of_block.get(at))?;
                        }
                        Ok(text)
                    };
                    for text in parts.map(text).collect::<Result<Vec<_>>>()? {
                        out.write_all(&text)?;
                    }
                }
                Ok(())
            };
            match is_stdout(path) {
                true => to_stdout(write),
                false => write_whole(path, |file| write(file)),
            }
        }
        Format::Safetensors => {
            let mut blocks = Vec::new();
            while let Some(block) = checked()? {
                blocks.push(block);
            }
            let features = Tensor::cat(&blocks, 0).context("there must be at least 1 row")?;
            let mut tensors = vec![("features".to_owned(), features)];
            if let Some(labels) = labels {
                tensors.push(("labels".to_owned(), Tensor::new(labels, &candle::Device::Cpu)?));
            }
            Ok(save_tensors(path, tensors, HashMap::new())?)
        }
    }
}

fn write_header(out: &mut dyn Write, n_columns: usize, labels: bool) -> Result<()> {
    let columns: Vec<String> = (0..n_columns).map(|column| format!("f{column}")).collect();
    Ok(writeln!(out, "{}{}", columns.join(","), if labels { ",label" } else { "" })?)
}

fn write_row(out: &mut Vec<u8>, row: &[f32], label: Option<&u32>) -> Result<()> {
    for (column, value) in row.iter().enumerate() {
        write!(out, "{}{value}", if column == 0 { "" } else { "," })?;
    }
    if let Some(label) = label {
        write!(out, ",{label}")?;
    }
    Ok(writeln!(out)?)
}

/// Writes one matrix to a file of its own, see [`write()`].
///
/// # Errors
/// As [`write()`].
pub fn write_one(path: &Path, rows: &Tensor) -> Result<()> {
    let mut once = Some(rows.clone());
    write(path, rows.dims2()?, || Ok(once.take()), None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;
    use std::fs::File;

    /// The rows of `x`, two at a time.
    fn blocks(x: &Tensor) -> impl FnMut() -> Result<Option<Tensor>> {
        let (x, mut at) = (x.clone(), 0);
        move || {
            let rows = 2.min(x.dim(0)? - at);
            at += rows;
            Ok(if rows == 0 { None } else { Some(x.narrow(0, at - rows, rows)?) })
        }
    }

    #[test]
    fn every_format_gives_back_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let x = Tensor::arange(0f32, 15., &Cpu).unwrap().reshape((5, 3)).unwrap();

        let npy = dir.path().join("x.npy");
        write(&npy, (5, 3), blocks(&x), None).unwrap();
        let file = npyz::NpyFile::new(File::open(&npy).unwrap()).unwrap();
        assert_eq!((file.shape(), file.order()), (&[5, 3][..], npyz::Order::C));
        let want: Vec<f32> = (0..15).map(|i| i as f32).collect();
        assert_eq!(file.into_vec::<f32>().unwrap(), want);

        let path = dir.path().join("x.safetensors");
        write(&path, (5, 3), blocks(&x), Some(&[4, 3, 2, 1, 0])).unwrap();
        let back = candle::safetensors::load(&path, &Cpu).unwrap();
        assert_eq!(back["features"].to_vec2::<f32>().unwrap(), x.to_vec2::<f32>().unwrap());
        assert_eq!(back["labels"].to_vec1::<u32>().unwrap(), [4, 3, 2, 1, 0]);

        let csv = dir.path().join("x.csv");
        let third = (&x / 3.).unwrap();
        write(&csv, (5, 3), blocks(&third), Some(&[4, 3, 2, 1, 0])).unwrap();
        assert!(std::fs::read_to_string(&csv).unwrap().starts_with("f0,f1,f2,label\n0,0.33333334,"));
        let data = chandlery_datasets::open(&csv.display().to_string(), &Default::default()).unwrap();
        assert_eq!(data.train.labels.as_deref(), Some(&[4u32, 3, 2, 1, 0][..]));
        let (read, written) = (data.train.to_tensor(&Cpu).unwrap(), third);
        assert_eq!(read.to_vec2::<f32>().unwrap(), written.to_vec2::<f32>().unwrap(), "to the last bit");
    }

    #[test]
    fn lines_of_several_threads_stand_in_order() {
        let (dir, n) = (tempfile::tempdir().unwrap(), 2 * LINES + 5);
        let x = Tensor::arange(0f32, n as f32, &Cpu).unwrap().unsqueeze(1).unwrap();
        let mut blocks = [x.narrow(0, 0, n - 3).unwrap(), x.narrow(0, n - 3, 3).unwrap()].into_iter();
        let labels: Vec<u32> = (0..n as u32).map(|i| i % 7).collect();
        let path = dir.path().join("x.csv");
        write(&path, (n, 1), || Ok(blocks.next()), Some(&labels)).unwrap();
        let want: String = (0..n).map(|i| format!("{i},{}\n", i % 7)).collect();
        assert!(std::fs::read_to_string(&path).unwrap() == format!("f0,label\n{want}"));
    }

    #[test]
    fn rows_that_do_not_add_up_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let x = Tensor::zeros((5, 3), DType::F32, &Cpu).unwrap();
        for (name, shape, text) in [
            ("a.npy", (6, 3), "there must be 6 rows, got 5"),
            ("b.safetensors", (4, 3), "blocks must add up to [4, 3], got [5, 3]"),
            ("c.npy", (5, 2), "blocks must add up to [5, 2], got [2, 3]"),
        ] {
            let err = write(&dir.path().join(name), shape, blocks(&x), None).unwrap_err();
            assert!(format!("{err:#}").ends_with(text), "{err:#}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_extension_is_refused() {
        let err = Format::of(Path::new("x.txt")).unwrap_err();
        assert_eq!(err.to_string(), "x.txt: the name must end in .npy, .csv or .safetensors");
    }
}
