//! Codes as matrices and as signals.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::codes::{ErrorTarget, Pursuit, SparseCodes, bomp};

#[test]
fn dense_codes_hold_each_entry_at_its_atom() -> Result<()> {
    let codes = SparseCodes {
        indices: Tensor::new(&[[2u32, 0, 0], [0, 3, 1]], &Cpu)?,
        values: Tensor::new(&[[5f32, 0., 0.], [1., -2., 3.]], &Cpu)?,
        count: Tensor::new(&[1u32, 3], &Cpu)?,
        n_atoms: 4,
    };
    assert_eq!(codes.to_dense()?.to_vec2::<f32>()?, [[0., 0., 5., 0.], [1., 3., 0., -2.]]);
    Ok(())
}

#[test]
fn reconstruction_and_residual_are_products_with_dense_codes() -> Result<()> {
    // Features below, at and above the 64 that are summed at a time; more signals than a task has.
    for (m, n, p, s) in [(1, 3, 1, 2), (7, 20, 63, 4), (300, 65, 64, 5), (2, 9, 65, 9), (600, 40, 200, 3)] {
        let (signals, dictionary) = (gaussian(m, p, 1)?, gaussian(n, p, 2)?);
        let pursuit = Pursuit { error: Some(ErrorTarget::Relative(0.6)), ..Pursuit::new(s) };
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 1e-5)] {
            let (signals, dictionary) = (signals.to_dtype(dtype)?, dictionary.to_dtype(dtype)?);
            let codes = bomp(&signals, &dictionary, &pursuit)?;
            let want = codes.to_dense()?.matmul(&dictionary)?;
            let differ = |a: &Tensor, b: &Tensor| -> Result<f64> {
                (a - b)?.abs()?.flatten_all()?.max(0)?.to_dtype(DType::F64)?.to_scalar()
            };
            let largest = want.abs()?.flatten_all()?.max(0)?.to_dtype(DType::F64)?.to_scalar::<f64>()?;
            let off = differ(&codes.reconstruct(&dictionary)?, &want)?;
            assert!(off <= tolerance * largest, "{m}x{n}x{p}x{s} {dtype:?}: X D is off by {off}");
            let off = differ(&codes.residual(&signals, &dictionary)?, &(&signals - &want)?)?;
            assert!(off <= tolerance * largest, "{m}x{n}x{p}x{s} {dtype:?}: Y - X D is off by {off}");
        }
    }
    Ok(())
}

#[test]
fn an_index_beyond_the_dictionary_is_refused() -> Result<()> {
    let codes = SparseCodes {
        indices: Tensor::new(&[[4u32]], &Cpu)?,
        values: Tensor::new(&[[1f32]], &Cpu)?,
        count: Tensor::new(&[1u32], &Cpu)?,
        n_atoms: 4,
    };
    for refused in [codes.reconstruct(&Tensor::zeros((4, 3), DType::F32, &Cpu)?), codes.to_dense()] {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("indices must be below 4, the number of atoms, got 4"), "{message}");
    }
    Ok(())
}
