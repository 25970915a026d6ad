//! Signals, dictionaries and codes of the tests, and what they compare.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{Pursuit, SparseCodes, bomp};
use chandlery_ops::core::normal;

pub const CPU: Device = Device::Cpu;

pub fn unit_rows(n: usize, p: usize, seed: u64, dtype: DType) -> Result<Tensor> {
    let d = normal((n, p), &CPU, Philox::new(seed, 0))?.to_dtype(DType::F64)?;
    d.broadcast_div(&d.sqr()?.sum_keepdim(1)?.sqrt()?)?.to_dtype(dtype)
}

/// Signals, dictionary and codes by orthogonal matching pursuit; some signals are zero and have
/// empty codes.
pub fn problem([m, n, p, s]: [usize; 4], dtype: DType) -> Result<(Tensor, Tensor, SparseCodes)> {
    let d = unit_rows(n, p, 1, dtype)?;
    let y = normal((m, p), &CPU, Philox::new(2, 0))?;
    let zero = Tensor::from_vec((0..m).map(|i| (i % 7 != 3) as u8 as f32).collect::<Vec<_>>(), (m, 1), &CPU)?;
    let y = y.broadcast_mul(&zero)?.to_dtype(dtype)?;
    let codes = bomp(&y, &d, &Pursuit::new(s))?;
    Ok((y, d, codes))
}

/// Codes in which most signals name an atom twice or more, and one as often as a code has entries.
pub fn repeated(m: usize, n: usize, s: usize, dtype: DType) -> Result<SparseCodes> {
    let words = (0..(m * s) as u64).map(|e| Philox::new(11, 0).bits(e));
    let indices: Vec<u32> =
        words.enumerate().map(|(e, word)| if e / s == 1 { 0 } else { word % n as u32 }).collect();
    Ok(SparseCodes {
        indices: Tensor::from_vec(indices, (m, s), &CPU)?,
        values: normal((m, s), &CPU, Philox::new(11, 1))?.to_dtype(dtype)?,
        count: Tensor::full(s as u32, m, &CPU)?,
        n_atoms: n,
    })
}

pub fn difference(got: &Tensor, want: &Tensor) -> Result<f64> {
    assert_eq!(got.dims(), want.dims());
    assert_eq!(got.dtype(), want.dtype());
    let d = (got.to_dtype(DType::F64)? - want.to_dtype(DType::F64)?)?.abs()?;
    let worst = d
        .flatten_all()?
        .to_vec1::<f64>()?
        .into_iter()
        .fold(0., |a: f64, b| if b > a || b.is_nan() { b } else { a });
    Ok(worst)
}

/// Below, at and above tiles (64 features, 16 lanes), blocks (256 rows) and the sizes at which
/// threads join; pairwise different.
pub const SHAPES: [[usize; 4]; 6] =
    [[5, 3, 2, 1], [40, 12, 16, 3], [301, 50, 20, 4], [1000, 33, 64, 5], [600, 70, 65, 6], [2500, 9, 130, 3]];
