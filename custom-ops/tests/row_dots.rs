//! Inner products of rows are exact to f64 and name what is wrong.
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{row_dots, row_dots_reference};
use chandlery_ops::core::normal;

#[test]
fn products_match_the_reference_around_lanes_and_segments() -> Result<()> {
    for (rows, cols) in
        [(1, 1), (3, 255), (2, 257), (7, 1000), (5, 16_384), (4, 16_385), (3, 81_925), (9, 40_000)]
    {
        for dtype in [DType::F32, DType::F64] {
            let x = normal((rows, cols), &Cpu, Philox::new(3, 1))?.to_dtype(dtype)?;
            let picks = [rows - 1, 0, rows / 2];
            let (got, want) = (row_dots(&x, &picks)?, row_dots_reference(&x, &picks)?);
            assert_eq!(got.dims(), [3, rows]);
            // A product is about √cols, and a sum of as many terms rounds by some 2⁻⁵³ of cols at
            // worst.
            let worst = (got - want)?.abs()?.max_all()?.to_scalar::<f64>()?;
            assert!(worst <= 1e-15 * cols as f64, "{rows}×{cols} {dtype:?}: {worst}");
        }
    }
    Ok(())
}

#[test]
fn small_differences_of_large_f32_products_are_kept() -> Result<()> {
    // 3 · 2²⁴ + 1 is no f32 number.
    let x = Tensor::new(&[[16_777_216f32, 1.], [3., 1.]], &Cpu)?;
    assert_eq!(row_dots(&x, &[0])?.to_vec2::<f64>()?[0][1], 50_331_649.);
    Ok(())
}

#[test]
fn a_nan_stays_with_its_row_and_no_columns_give_zero() -> Result<()> {
    let x = Tensor::new(&[[1f64, 2.], [f64::NAN, 1.], [4., 1.]], &Cpu)?;
    let dots = row_dots(&x, &[0, 1])?.to_vec2::<f64>()?;
    assert_eq!((dots[0][0], dots[0][2]), (5., 6.));
    assert!(dots[0][1].is_nan() && dots[1].iter().all(|dot| dot.is_nan()));
    let none = row_dots(&Tensor::zeros((2, 0), DType::F32, &Cpu)?, &[1])?;
    assert_eq!(none.to_vec2::<f64>()?, [[0., 0.]]);
    Ok(())
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let x = Tensor::zeros((2, 3), DType::F32, &Cpu)?;
    let cases = [
        (row_dots(&x, &[]), "row_dots: picks must be 1 to 4 rows, got 0"),
        (row_dots(&x, &[0; 5]), "row_dots: picks must be 1 to 4 rows, got 5"),
        (row_dots(&x, &[1, 2]), "row_dots: picks must be below 2, the number of rows, got 2"),
        (row_dots(&x.to_dtype(DType::U8)?, &[0]), "row_dots: x must be f32 or f64, got U8"),
    ];
    for (result, want) in cases {
        let message = result.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned());
        assert_eq!(message.as_deref(), Some(want));
    }
    Ok(())
}
