//! Neighbours that were found elsewhere.
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::tsne::Neighbours;
use npyz::{Deserialize, NpyFile};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Reads the neighbours of `n` rows: indices of some integer type and distances of some float type, both `[n, k]`.
pub fn neighbours(indices: &Path, distances: &Path, n: usize, device: &Device) -> Result<Neighbours> {
    let at = || format!("--neighbours-from {}", indices.display());
    let (shape, integers) = read(indices, integers).with_context(at)?;
    let u32s: Option<Vec<u32>> = integers.iter().map(|&i| u32::try_from(i).ok()).collect();
    let u32s =
        u32s.with_context(|| format!("{}: indices must be from 0 to {}", at(), n.saturating_sub(1)))?;
    ensure!(shape[0] == n, "{}: there must be a line for each of {n} rows, got {}", at(), shape[0]);
    let of_distances = || format!("--distances {}", distances.display());
    let (got, floats) = read(distances, floats).with_context(of_distances)?;
    ensure!(
        got == shape,
        "{}: must have the shape of --neighbours-from, {shape:?}, got {got:?}",
        of_distances()
    );
    let (n, k) = (shape[0], shape[1]);
    Ok(Neighbours {
        indices: Tensor::from_vec(u32s, (n, k), device)?,
        distances: Tensor::from_vec(floats, (n, k), device)?,
    })
}

type Npy = NpyFile<BufReader<File>>;

/// A matrix with its shape; `values` reads whatever type it knows.
fn read<T>(path: &Path, values: fn(Npy) -> Result<Vec<T>>) -> Result<([usize; 2], Vec<T>)> {
    let npy = NpyFile::new(BufReader::new(File::open(path)?))?;
    ensure!(npy.order() == npyz::Order::C, "must be in C order; save it by numpy.ascontiguousarray");
    let shape = match npy.shape() {
        &[n, k] => [n as usize, k as usize],
        got => anyhow::bail!("must be a matrix, got shape {got:?}"),
    };
    Ok((shape, values(npy)?))
}

/// The values as `T`, or the file again if it holds another type.
fn of_type<T: Deserialize>(npy: Npy) -> Result<Result<Vec<T>, Npy>> {
    match npy.try_data::<T>() {
        Ok(data) => Ok(Ok(data.collect::<std::io::Result<_>>()?)),
        Err(npy) => Ok(Err(npy)),
    }
}

fn integers(npy: Npy) -> Result<Vec<i64>> {
    fn wide<T: Into<i64>>(values: Vec<T>) -> Vec<i64> {
        values.into_iter().map(Into::into).collect()
    }
    let npy = match of_type::<i64>(npy)? {
        Ok(values) => return Ok(values),
        Err(npy) => npy,
    };
    let npy = match of_type::<i32>(npy)? {
        Ok(values) => return Ok(wide(values)),
        Err(npy) => npy,
    };
    match of_type::<u32>(npy)? {
        Ok(values) => Ok(wide(values)),
        Err(npy) => anyhow::bail!("must hold i32, i64 or u32, got {}", npy.dtype().descr()),
    }
}

fn floats(npy: Npy) -> Result<Vec<f32>> {
    let npy = match of_type::<f32>(npy)? {
        Ok(values) => return Ok(values),
        Err(npy) => npy,
    };
    match of_type::<f64>(npy)? {
        Ok(values) => Ok(values.into_iter().map(|x| x as f32).collect()),
        Err(npy) => anyhow::bail!("must hold f32 or f64, got {}", npy.dtype().descr()),
    }
}
