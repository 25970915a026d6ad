//! Neighbours that were found elsewhere.
use anyhow::{Context, Result, anyhow, ensure};
use candle::Device;
use chandlery::Philox;
use chandlery::tsne::{
    CheckedNeighbours, GivenDistances, GivenNeighbours, TsneConfig, TsneTrainer, WrongNeighbours,
};
use chandlery_datasets::count;
use chandlery_ops::core::free_memory;
use npyz::{Deserialize, NpyFile};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// What a run is made of in place of rows.
#[derive(Debug, Clone)]
pub enum Given {
    /// Files of indices and distances.
    Neighbours([PathBuf; 2]),
    /// A file of the distances of all pairs.
    Distances(PathBuf),
}

impl Given {
    /// The same with the places of the files as `at` has them.
    pub fn at(self, at: impl Fn(&Path) -> PathBuf) -> Self {
        match self {
            Self::Neighbours(files) => Self::Neighbours(files.map(|file| at(&file))),
            Self::Distances(file) => Self::Distances(at(&file)),
        }
    }

    /// A run over what the files hold of `n` rows. Names the file of what makes no sense.
    pub fn run(&self, config: TsneConfig, philox: Philox, n: usize, device: &Device) -> Result<TsneTrainer> {
        match self {
            Self::Neighbours([indices, distances]) => {
                let given = neighbours(indices, distances, n)?;
                Ok(TsneTrainer::from_checked(config, philox, &given, device)?)
            }
            Self::Distances(file) => {
                let of = || format!("--distance-matrix {}", file.display());
                let all = matrix(file, n).with_context(of)?;
                let given = GivenDistances { all: &all, n };
                TsneTrainer::from_given_distances(config, philox, &given, device).with_context(of)
            }
        }
    }
}

/// Reads the distances of all pairs of `n` rows, which must have room.
fn matrix(file: &Path, n: usize) -> Result<Vec<f64>> {
    let need = 8 * (n as u64).saturating_mul(n as u64);
    if let Some(free) = free_memory(&Device::Cpu)? {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        ensure!(
            need <= free,
            "the distances of {} take {:.1} GiB, and {:.1} GiB are free; give neighbours with --neighbours-from",
            count(n, "row"),
            gib(need),
            gib(free)
        );
    }
    let (shape, all) = read(file, floats)?;
    ensure!(shape == [n, n], "must have a line and a column for each of {}, got {shape:?}", count(n, "row"));
    Ok(all)
}

/// Reads the neighbours of `n` rows: indices of some integer type and distances of some float type,
/// both `[n, k]`. Names the file of what makes no sense.
fn neighbours(indices: &Path, distances: &Path, n: usize) -> Result<CheckedNeighbours> {
    let of_indices = format!("--neighbours-from {}", indices.display());
    let of_distances = format!("--distances {}", distances.display());
    let (shape, indices) = read(indices, integers).with_context(|| of_indices.clone())?;
    ensure!(
        shape[0] == n,
        "{of_indices}: there must be a line for each of {}, got {}",
        count(n, "row"),
        shape[0]
    );
    ensure!(shape[1] > 0, "{of_indices}: must have at least one neighbour in a line, got shape {shape:?}");
    let (got, distances) = read(distances, floats).with_context(|| of_distances.clone())?;
    ensure!(got == shape, "{of_distances}: must have the shape of --neighbours-from, {shape:?}, got {got:?}");
    let given = GivenNeighbours { indices: &indices, distances: &distances, k: shape[1] };
    given.checked().map_err(|wrong| match wrong {
        WrongNeighbours::Indices(_) => anyhow!("{of_indices}: {wrong}"),
        WrongNeighbours::Distances(_) => anyhow!("{of_distances}: {wrong}"),
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

fn floats(npy: Npy) -> Result<Vec<f64>> {
    let npy = match of_type::<f64>(npy)? {
        Ok(values) => return Ok(values),
        Err(npy) => npy,
    };
    match of_type::<f32>(npy)? {
        Ok(values) => Ok(values.into_iter().map(f64::from).collect()),
        Err(npy) => anyhow::bail!("must hold f32 or f64, got {}", npy.dtype().descr()),
    }
}
