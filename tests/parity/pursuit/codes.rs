//! What codes stand for.
use super::{eps, moved, problem};
use candle::{DType, Result};
use chandlery_ops::codes::{Pursuit, SparseCodes, bomp};
use chandlery_tests::{assert_close, assert_same_bits, devices};

#[test]
fn codes_stand_for_the_same_signals_on_every_device() -> Result<()> {
    for (m, n, p, s) in
        [(1, 1, 1, 1), (7, 5, 3, 2), (37, 40, 31, 9), (65, 300, 64, 33), (33, 70, 65, 40), (9, 20, 500, 3)]
    {
        for dtype in [DType::F32, DType::F64] {
            let (signals, dictionary) = problem(m, n, p, dtype)?;
            let codes = bomp(&signals, &dictionary, &Pursuit::new(s))?;
            let dense = codes.to_dense()?;
            let fit =
                dense.to_dtype(DType::F64)?.matmul(&dictionary.to_dtype(DType::F64)?)?.to_dtype(dtype)?;
            for device in devices()? {
                let codes = SparseCodes {
                    indices: moved(&codes.indices, &device)?,
                    values: moved(&codes.values, &device)?,
                    count: moved(&codes.count, &device)?,
                    n_atoms: n,
                };
                let (y, d) = (moved(&signals, &device)?, moved(&dictionary, &device)?);
                let what = format!("{m} codes of {s} of {n} atoms, {p} samples on {:?}", device.location());
                assert_same_bits(&what, &codes.to_dense()?, &dense)?;
                // Sums of s products of order 1.
                let tolerance = 4. * eps(dtype) as f32 * s as f32;
                assert_close(&what, &codes.reconstruct(&d)?, &fit, tolerance, tolerance)?;
                assert_close(&what, &codes.residual(&y, &d)?, &(&signals - &fit)?, tolerance, tolerance)?;
            }
        }
    }
    Ok(())
}
