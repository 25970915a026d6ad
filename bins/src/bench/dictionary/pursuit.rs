//! Pursuits at named sizes, all included: correlations, Gram matrix, pursuit and sparse
//! codes.
use super::{DictionaryArgs, Row, data};
use crate::bench::floor::Gpu;
use crate::bench::place::Place;
use crate::bench::table::{Column, Table, or_dash};
use crate::bench::timing::time;
use crate::report::Report;
use anyhow::{Context, Result, bail};
use candle::{DType, Device, Tensor};
use chandlery::dictionary::pursuit::{PursuitMethod, SparseCoder};
use std::path::Path;
use std::str::FromStr;

/// Signals, atoms, values of a signal and atoms of a code, written `10240x128x64x8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub m: usize,
    pub n: usize,
    pub p: usize,
    pub s: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<usize>> =
            text.split('x').map(|n| n.parse().ok().filter(|&n| n >= 1)).collect();
        let size = match numbers.as_deref() {
            Some(&[m, n, p, s]) => Self { m, n, p, s },
            _ => {
                return Err(format!(
                    "must be SIGNALSxATOMSxVALUESxNONZERO, such as 10240x128x64x8, got {text}"
                ));
            }
        };
        let side = size.p.isqrt();
        if side * side != size.p || size.s > size.n {
            return Err(format!(
                "values must be those of a square patch and nonzero at most atoms, got {text}"
            ));
        }
        Ok(size)
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}x{}x{}", self.m, self.n, self.p, self.s)
    }
}

/// What the second-level cache of an H200 gives.
pub const CACHE_BYTES_PER_SECOND: f64 = 5.4e12;

/// What a pursuit of this size costs an H200 at the least, in seconds: the largest of arithmetic,
/// cache and memory.
///
/// Arithmetic: `DᵀY` and `s(s − 1)` FLOP a signal and atom, in f32. Second-level cache: each row of
/// the Gram matrix that is chosen is read once, at 5.4 TB/s. Memory: signals in, codes out.
pub fn floor(size: Size, gpu: &Gpu) -> f64 {
    let [m, n, p, s] = [size.m, size.n, size.p, size.s].map(|x| x as f64);
    let arithmetic = (2. * m * n * p + m * n * s * (s - 1.)) / gpu.f32_flops;
    let cache = 4. * m * n * (s - 1.) / CACHE_BYTES_PER_SECOND;
    let memory = m * (4. * p + 8. * s + 4.) / gpu.memory_bytes;
    arithmetic.max(cache).max(memory)
}

/// Columns of the pursuits.
const COLUMNS: [Column<Row>; 10] = [
    Column("size", -22, |row| row.size().to_string()),
    Column("", -5, |row| row.task.clone()),
    Column("on", -26, |row| row.device.clone()),
    Column("median ms", 10, |row| format!("{:.3}", row.ms)),
    Column("min ms", 10, |row| format!("{:.3}", row.ms_min)),
    Column("max ms", 10, |row| format!("{:.3}", row.ms_max)),
    Column("us/signal", 9, |row| format!("{:.3}", 1e3 * row.ms / row.n_signals as f64)),
    Column("residual", 9, |row| or_dash(row.error, 4)),
    Column("floor ms", 9, |row| or_dash(row.floor_ms, 4)),
    Column("peer ms", 9, |row| or_dash(row.peer_ms, 4)),
];

pub fn run(args: &DictionaryArgs, device: &Device, report: &Report, rows: &mut Vec<Row>) -> Result<()> {
    let peer = args.peer.as_deref().map(run_peer).transpose()?.unwrap_or_default();
    report.line("pursuit of natural patches; floor: of an H200; peer: the script of --peer, run here")?;
    let mut table = Table::new(report, &COLUMNS)?;
    for &size in &args.size {
        let data = Data::new(size)?;
        for place in Place::all(device, !args.no_single)? {
            for method in args.pursuit.iter().map(|&method| PursuitMethod::from(method)) {
                let row = measure(&place, &data, method, args.timing.repeats)
                    .with_context(|| format!("{} {size}", method.name()))?;
                let known = peer.iter().find(|(of, _)| *of == size).map(|&(_, ms)| ms);
                table.add(Row { peer_ms: known.filter(|_| method == PursuitMethod::Omp), ..row })?;
            }
        }
    }
    rows.extend(table.into_rows());
    Ok(())
}

/// What is coded, on the CPU.
struct Data {
    size: Size,
    signals: Tensor,
    atoms: Tensor,
}

impl Data {
    fn new(size: Size) -> Result<Self> {
        let side = size.p.isqrt();
        let signals = data::patches(size.m, side, &Device::Cpu)?;
        Ok(Self { size, signals, atoms: data::atoms(size.n, side, &Device::Cpu)? })
    }
}

/// Times one pursuit in one place; one thread, which takes long and varies little, at most three
/// times.
fn measure(place: &Place, data: &Data, method: PursuitMethod, repeats: u32) -> Result<Row> {
    let (signals, atoms) = (data.signals.to_device(&place.device)?, data.atoms.to_device(&place.device)?);
    let coder = SparseCoder::new(method, data.size.s);
    let repeats = if place.pool.is_some() { repeats.min(3) } else { repeats };
    let mut codes = None;
    let ms = place
        .run(|| {
            time(&place.device, repeats, || {
                codes = Some(coder.encode(&signals, &atoms)?);
                Ok(())
            })
        })?
        .times(1e3);
    let codes = codes.context("no codes")?;
    let norm =
        |t: &Tensor| -> Result<f64> { Ok(t.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?) };
    let error = (norm(&codes.residual(&signals, &atoms)?)? / norm(&signals)?).sqrt();
    let floor_ms = Some(1e3 * floor(data.size, &Gpu::H200));
    Ok(Row { error: Some(error), floor_ms, ..Row::new(place, method.name().to_owned(), data.size, ms) })
}

/// Runs a peer's script and reads its times.
fn run_peer(script: &Path) -> Result<Vec<(Size, f64)>> {
    let at = || format!("--peer {}", script.display());
    let mut command = crate::bench::peer::command(script)?;
    let output = command.output().with_context(at)?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", at(), output.status, error.trim_end().lines().last().unwrap_or_default())
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(peer_line).collect())
}

/// The size and the time of a line such as
/// `omp_torch m=10240 n=128 p=64 s=8: 5.99 ms, 1.71 Msignals/s`.
fn peer_line(line: &str) -> Option<(Size, f64)> {
    let (setting, times) = line.split_once(": ")?;
    let number = |name: &str| {
        setting.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let size = Size { m: number("m")?, n: number("n")?, p: number("p")?, s: number("s")? };
    Some((size, times.split_once(" ms")?.0.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Size = Size { m: 1_048_576, n: 512, p: 64, s: 8 };

    #[test]
    fn floors_are_those_of_the_arithmetic_done_by_hand() {
        // 2²⁰ · 512 · (128 + 56) / 67·10¹² = 1.47 ms; rows of the Gram matrix: 2²⁰ · 7 · 2048 /
        // 5.4·10¹² = 2.78 ms.
        assert!((floor(LARGE, &Gpu::H200) - 2.78e-3).abs() < 1e-5);
        // One atom a code reads no row: 2²⁰ · 512 · 128 / 67·10¹² = 1.03 ms.
        assert!((floor(Size { s: 1, ..LARGE }, &Gpu::H200) - 1.03e-3).abs() < 1e-5);
    }

    #[test]
    fn lines_of_a_peer_are_read_and_others_passed_over() {
        let line = "omp_torch m=1048576 n=512 p=64 s=8: 244.01 ms, 4.30 Msignals/s";
        assert_eq!(peer_line(line), Some((LARGE, 244.01)));
        for line in ["", "warming up: 3 ms", "omp_torch m=1 n=2 p=3: 4 ms", "omp m=1 n=2 p=3 s=4: x ms"] {
            assert_eq!(peer_line(line), None, "{line}");
        }
    }

    #[test]
    fn a_size_is_four_numbers_of_a_square_patch() {
        assert_eq!("1048576x512x64x8".parse(), Ok(LARGE));
        for text in ["", "1x2x4", "0x2x4x1", "9x2x5x1", "9x2x4x3", "9x2x4x1x1"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
