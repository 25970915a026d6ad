//! Rows in any order, and what is refused.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::arrays::{gather_rows, gather_rows_by};

#[test]
fn nothing_gathered_is_an_empty_matrix() -> Result<()> {
    let x = Tensor::zeros((4, 3), DType::F32, &Cpu)?;
    assert_eq!(gather_rows(&x, &[])?.dims(), [0, 3]);
    assert_eq!(gather_rows(&Tensor::zeros((4, 0), DType::U8, &Cpu)?, &[3, 1])?.dims(), [2, 0]);
    Ok(())
}

#[test]
fn rows_may_have_any_number_of_dimensions() -> Result<()> {
    let x = Tensor::arange(0u32, 24, &Cpu)?;
    let rows = Tensor::new(&[2u32, 0, 2], &Cpu)?;
    for shape in [&[24][..], &[4, 6], &[3, 2, 4], &[3, 2, 2, 2]] {
        let x = x.reshape(shape)?;
        let (got, want) = (gather_rows_by(&x, &rows)?, x.index_select(&rows, 0)?);
        assert_eq!(got.dims(), want.dims());
        assert_eq!(got.flatten_all()?.to_vec1::<u32>()?, want.flatten_all()?.to_vec1::<u32>()?);
    }
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let x = Tensor::zeros((4, 3), DType::F32, &Cpu)?;
    let cases = [
        (gather_rows(&x, &[1, 4]), "gather_rows: rows must be below 4, the number of rows of x, got 4"),
        (
            gather_rows_by(&x, &Tensor::new(&[1u32, u32::MAX], &Cpu)?),
            "gather_rows: rows must be below 4, the number of rows of x, got 4294967295",
        ),
        (
            gather_rows_by(&x, &Tensor::new(&[[1u32]], &Cpu)?),
            "gather_rows: rows must have one dimension, got shape [1, 1]",
        ),
        (gather_rows_by(&x, &Tensor::new(&[1i64], &Cpu)?), "gather_rows: rows must be u32, got I64"),
        (gather_rows(&Tensor::new(1f32, &Cpu)?, &[0]), "gather_rows: x must be [n_rows, ..], got a scalar"),
    ];
    for (result, want) in cases {
        let message = result.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        assert_eq!(message.as_deref(), Some(want));
    }
    Ok(())
}
