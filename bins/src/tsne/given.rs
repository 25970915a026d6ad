//! Neighbours that were found, and distances that were computed, elsewhere.
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
use std::sync::Arc;

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

    /// What the files hold of `n` rows, for a run with this configuration. Names the file of what
    /// makes no sense.
    pub fn read(&self, config: &TsneConfig, n: usize) -> Result<Read> {
        match self {
            Self::Neighbours([indices, distances]) => {
                Ok(Read::Neighbours(neighbours(indices, distances, n)?))
            }
            Self::Distances(file) => {
                config.validate()?;
                config.lowered(n).check_neighbours(n)?;
                Ok(Read::Distances(Arc::new(Matrix::read(file, n)?)))
            }
        }
    }

    /// The distances of all pairs of `n` rows, where they were given.
    pub fn distances(&self, n: usize) -> Result<Option<Matrix>> {
        match self {
            Self::Neighbours(_) => Ok(None),
            Self::Distances(file) => Matrix::read(file, n).map(Some),
        }
    }
}

/// What files hold.
#[derive(Debug, Clone)]
pub enum Read {
    /// Neighbours that make sense.
    Neighbours(CheckedNeighbours),
    /// Distances of all pairs.
    Distances(Arc<Matrix>),
}

impl Read {
    /// A run over it.
    pub fn run(&self, config: TsneConfig, philox: Philox, device: &Device) -> Result<TsneTrainer> {
        match self {
            Self::Neighbours(given) => Ok(TsneTrainer::from_checked(config, philox, given, device)?),
            Self::Distances(matrix) => {
                let run = TsneTrainer::from_given_distances(config, philox, &matrix.distances(), device);
                run.with_context(|| matrix.name.clone())
            }
        }
    }
}

/// The distances of all pairs of rows.
#[derive(Debug)]
pub struct Matrix {
    /// The argument and the file.
    name: String,
    all: Vec<f64>,
    n: usize,
}

impl Matrix {
    /// Reads those of `n` rows, which must have room.
    fn read(file: &Path, n: usize) -> Result<Self> {
        let name = format!("--distance-matrix {}", file.display());
        let read = || {
            let (shape, npy) = header(file)?;
            let rows = count(n, "row");
            ensure!(shape == [n, n], "must have a line and a column for each of {rows}, got {shape:?}");
            check_room(n, free_memory(&Device::Cpu)?)?;
            floats(npy)
        };
        Ok(Self { all: read().with_context(|| name.clone())?, n, name })
    }

    /// The same as the library takes them.
    pub fn distances(&self) -> GivenDistances<'_> {
        GivenDistances { all: &self.all, n: self.n }
    }
}

/// Refuses the distances of all pairs of `n` rows where they have no room: f64, whatever type the
/// file has.
fn check_room(n: usize, free: Option<u64>) -> Result<()> {
    let need = 8 * (n as u64).saturating_mul(n as u64);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    match free {
        Some(free) if need > free => anyhow::bail!(
            "the distances of {} take {:.1} GiB, and {:.1} GiB are free; give neighbours with --neighbours-from",
            count(n, "row"),
            gib(need),
            gib(free)
        ),
        _ => Ok(()),
    }
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
    let (shape, npy) = header(path)?;
    Ok((shape, values(npy)?))
}

/// The shape of a matrix, of which no value was read.
fn header(path: &Path) -> Result<([usize; 2], Npy)> {
    let npy = NpyFile::new(BufReader::new(File::open(path)?))?;
    ensure!(npy.order() == npyz::Order::C, "must be in C order; save it by numpy.ascontiguousarray");
    match npy.shape() {
        &[n, k] => Ok(([n as usize, k as usize], npy)),
        got => anyhow::bail!("must be a matrix, got shape {got:?}"),
    }
}

/// The values of a file of `T` as `U`, each as it is read, or the file again if it holds another
/// type.
fn of_type<T: Deserialize + Into<U>, U>(npy: Npy) -> Result<Result<Vec<U>, Npy>> {
    match npy.try_data::<T>() {
        Ok(data) => {
            let mut all = Vec::new();
            all.try_reserve_exact(data.size_hint().0)?;
            for value in data {
                all.push(value?.into());
            }
            Ok(Ok(all))
        }
        Err(npy) => Ok(Err(npy)),
    }
}

fn integers(npy: Npy) -> Result<Vec<i64>> {
    let npy = match of_type::<i64, _>(npy)? {
        Ok(values) => return Ok(values),
        Err(npy) => npy,
    };
    let npy = match of_type::<i32, _>(npy)? {
        Ok(values) => return Ok(values),
        Err(npy) => npy,
    };
    match of_type::<u32, _>(npy)? {
        Ok(values) => Ok(values),
        Err(npy) => anyhow::bail!("must hold i32, i64 or u32, got {}", npy.dtype().descr()),
    }
}

fn floats(npy: Npy) -> Result<Vec<f64>> {
    let npy = match of_type::<f64, _>(npy)? {
        Ok(values) => return Ok(values),
        Err(npy) => npy,
    };
    match of_type::<f32, _>(npy)? {
        Ok(values) => Ok(values),
        Err(npy) => anyhow::bail!("must hold f32 or f64, got {}", npy.dtype().descr()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_matrix_without_room_is_refused_with_what_it_takes() {
        assert!(check_room(1 << 14, Some(2 << 30)).is_ok());
        assert!(check_room(usize::MAX, None).is_ok());
        let error = check_room((1 << 14) + 1, Some(2 << 30)).unwrap_err().to_string();
        let want = "the distances of 16385 rows take 2.0 GiB, and 2.0 GiB are free";
        assert!(error.starts_with(want), "{error}");
    }

    #[test]
    fn the_shape_is_checked_before_a_value_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("d.npy");
        // A header without values.
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (70000, 60000), }\n";
        let magic = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..]].concat();
        std::fs::write(&file, [&magic, header.as_bytes()].concat()).unwrap();
        let error = format!("{:#}", Matrix::read(&file, 70_000).unwrap_err());
        let want = "must have a line and a column for each of 70000 rows, got [70000, 60000]";
        assert!(error.contains(want), "{error}");
    }
}
