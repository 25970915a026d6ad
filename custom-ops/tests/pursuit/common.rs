//! Signals, dictionaries and what the tests compare.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{Pursuit, SparseCodes, bomp, ols, ols_reference, omp_reference};
use chandlery_ops::core::normal;

pub type Coder = fn(&Tensor, &Tensor, &Pursuit) -> Result<SparseCodes>;

/// Each pursuit with its name and its reference.
pub const CODERS: [(&str, Coder, Coder); 2] = [("bomp", bomp, omp_reference), ("ols", ols, ols_reference)];

/// Independent normal entries, f64 with the values of f32.
pub fn gaussian(rows: usize, p: usize, stream: u64) -> Result<Tensor> {
    normal((rows, p), &Cpu, Philox::new(11, stream))?.to_dtype(DType::F64)
}

/// Random walks without their mean: neighbours are alike, as in images, and so are many of the
/// rows.
pub fn walks(rows: usize, p: usize, stream: u64) -> Result<Tensor> {
    let walk = gaussian(rows, p, stream)?.cumsum(1)?;
    walk.broadcast_sub(&walk.mean_keepdim(1)?)?.to_dtype(DType::F32)?.to_dtype(DType::F64)
}

/// A code by its entries: atoms and coefficients of each row, without padding.
pub fn entries(codes: &SparseCodes) -> Result<Vec<Vec<(u32, f64)>>> {
    let indices = codes.indices.to_vec2::<u32>()?;
    let values = codes.values.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let count = codes.count.to_vec1::<u32>()?;
    let row = |i: usize| indices[i].iter().copied().zip(values[i].iter().copied());
    Ok((0..count.len()).map(|i| row(i).take(count[i] as usize).collect()).collect())
}

/// The atoms of each row in the order of their choice.
pub fn supports(codes: &SparseCodes) -> Result<Vec<Vec<u32>>> {
    Ok(entries(codes)?.into_iter().map(|row| row.into_iter().map(|(i, _)| i).collect()).collect())
}

/// `‖yᵢ − xᵢ D‖` for each row, in f64.
pub fn residual_norms(codes: &SparseCodes, signals: &Tensor, dictionary: &Tensor) -> Result<Vec<f64>> {
    let wide = |x: &Tensor| x.to_dtype(DType::F64);
    let codes = SparseCodes { values: wide(&codes.values)?, ..codes.clone() };
    codes.residual(&wide(signals)?, &wide(dictionary)?)?.sqr()?.sum(1)?.sqrt()?.to_vec1()
}

pub fn norms(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.sqr()?.sum(1)?.sqrt()?.to_vec1()
}

/// Asserts equal supports, and coefficients that differ by at most `tolerance` times the largest of
/// the row.
pub fn assert_same(what: &str, got: &SparseCodes, want: &SparseCodes, tolerance: f64) -> Result<()> {
    let (got, want) = (entries(got)?, entries(want)?);
    assert_eq!(got.len(), want.len(), "{what}: rows");
    for (row, (got, want)) in got.iter().zip(&want).enumerate() {
        let atoms = |code: &[(u32, f64)]| code.iter().map(|(i, _)| *i).collect::<Vec<_>>();
        assert_eq!(atoms(got), atoms(want), "{what}: support of row {row}");
        let scale = want.iter().fold(0., |a: f64, (_, x)| a.max(x.abs()));
        for ((i, got), (_, want)) in got.iter().zip(want) {
            let (off, allowed) = ((got - want).abs(), tolerance * scale);
            assert!(
                off <= allowed,
                "{what}: row {row}, atom {i}: {got} against {want}, off by {off} of {allowed}"
            );
        }
    }
    Ok(())
}
