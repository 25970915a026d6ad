//! Rows that are scaled to some columns of a wider matrix are those of a matrix of their own, and
//! leave the other columns as they are.
use candle::{D, DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{scale_into_, split_into_};
use chandlery_ops::core::uniform;

const BEFORE: f64 = 7.;

fn numbers(t: &Tensor) -> Result<Vec<f32>> {
    t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

#[test]
fn columns_of_a_wider_matrix_hold_what_a_matrix_of_their_own_does() -> Result<()> {
    for (rows, width, wider, at) in [(1, 1, 2, 1), (2, 5, 8, 0), (7, 33, 41, 3), (300, 785, 792, 0)] {
        let x = (uniform((rows, width), &Cpu, Philox::new(5, 0))? * 255.)?;
        for x in [x.to_dtype(DType::U8)?, x] {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let (own, wide) = (
                    Tensor::zeros((rows, width), dtype, &Cpu)?,
                    Tensor::full(BEFORE, (rows, wider), &Cpu)?.to_dtype(dtype)?,
                );
                scale_into_(&own, &x, 0.3)?;
                scale_into_(&wide.narrow(1, at, width)?, &x, 0.3)?;
                assert_columns(&wide, &own, at)?;
            }
            let (own, wide) = (
                Tensor::zeros((2, rows, width), DType::F16, &Cpu)?,
                Tensor::full(BEFORE, (2, rows, wider), &Cpu)?.to_dtype(DType::F16)?,
            );
            split_into_(&own, &x, 0.3)?;
            split_into_(&wide.narrow(2, at, width)?, &x, 0.3)?;
            assert_columns(&wide, &own, at)?;
        }
    }
    Ok(())
}

/// Columns from `at` on are those of `own`, and the others as they were.
#[track_caller]
fn assert_columns(wide: &Tensor, own: &Tensor, at: usize) -> Result<()> {
    let (width, wider) = (own.dim(D::Minus1)?, wide.dim(D::Minus1)?);
    let what = format!("{:?} {:?} of {wider}", own.dtype(), own.dims());
    assert_eq!(numbers(&wide.narrow(D::Minus1, at, width)?.contiguous()?)?, numbers(own)?, "{what}");
    for (first, n) in [(0, at), (at + width, wider - at - width)] {
        let others = numbers(&wide.narrow(D::Minus1, first, n)?.contiguous()?)?;
        assert!(others.iter().all(|&x| f64::from(x) == BEFORE), "{what}: another column was written");
    }
    Ok(())
}

#[test]
fn results_of_other_layouts_are_refused() -> Result<()> {
    let x = Tensor::zeros((3, 4), DType::F32, &Cpu)?;
    let turned = Tensor::zeros((4, 3), DType::F32, &Cpu)?;
    let message = scale_into_(&turned.t()?, &x, 1.).err().map_or_else(String::new, |e| e.to_string());
    assert!(message.contains("must be contiguous"), "{message}");
    // Parts that lie between each other.
    let between = Tensor::zeros((3, 2, 4), DType::F16, &Cpu)?.transpose(0, 1)?;
    let message = split_into_(&between, &x, 1.).err().map_or_else(String::new, |e| e.to_string());
    assert!(message.contains("entries apart"), "{message}");
    Ok(())
}
