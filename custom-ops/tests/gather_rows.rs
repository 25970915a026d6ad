//! Rows in any order, and what is refused.
#![allow(missing_docs)]
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::gather_rows;

#[test]
fn nothing_gathered_is_an_empty_matrix() -> Result<()> {
    let x = Tensor::zeros((4, 3), DType::F32, &Cpu)?;
    assert_eq!(gather_rows(&x, &[])?.dims(), [0, 3]);
    assert_eq!(gather_rows(&Tensor::zeros((4, 0), DType::U8, &Cpu)?, &[3, 1])?.dims(), [2, 0]);
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let x = Tensor::zeros((4, 3), DType::F32, &Cpu)?;
    let cases = [
        (gather_rows(&x, &[1, 4]), "gather_rows: rows must be below 4, the number of rows of x, got 4"),
        (gather_rows(&x.get(0)?, &[0]), "gather_rows: x must be [n_rows, n_cols], got shape [3]"),
    ];
    for (result, want) in cases {
        let message = result.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        assert_eq!(message.as_deref(), Some(want));
    }
    Ok(())
}
