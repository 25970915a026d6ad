//! The vectors of a quasi-Newton method: close to the exact sums, and the same bits on every
//! device.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{
    combine_rows_, combine_rows_reference, moved_along, moved_along_reference, put_difference_,
    put_difference_reference,
};
use chandlery_ops::core::normal;
use chandlery_tests::{assert_close, devices};

const CPU: Device = Device::Cpu;
/// Columns around a warp, the 256 threads of a block and the 1024 columns of a task; 3289 is
/// 64-25-64.
const SIZES: [(usize, usize); 8] =
    [(2, 1), (3, 31), (5, 257), (44, 3289), (3, 1024), (44, 6001), (6, 1025), (2, 262_145)];

fn bits(t: &Tensor) -> Result<Vec<u64>> {
    let t = t.to_device(&CPU)?.flatten_all()?.to_dtype(DType::F64)?;
    Ok(t.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect())
}

/// A matrix, and the rounding of one result in its type relative to the largest.
fn cases() -> Result<Vec<(Tensor, f32)>> {
    let matrix = |(shape, dtype): ((usize, usize), DType)| {
        let x = normal(shape, &CPU, Philox::new(4, 1))?.to_dtype(dtype)?;
        Ok((x, if dtype == DType::F64 { 1e-13 } else { 2f32.powi(-22) }))
    };
    SIZES.into_iter().flat_map(|shape| [(shape, DType::F32), (shape, DType::F64)]).map(matrix).collect()
}

#[test]
fn combinations_of_rows_leave_out_those_with_coefficient_0_even_nan() -> Result<()> {
    for device in devices()? {
        for (x, rtol) in cases()? {
            let (rows, n) = x.dims2()?;
            let mut coefficients: Vec<f64> = (0..rows).map(|i| (i as f64 + 0.3).sin()).collect();
            for to in [0, rows - 1, rows / 2] {
                coefficients[(to + 1) % rows] = 0.;
                let host = Tensor::new(&coefficients[..], &CPU)?;
                let want = combine_rows_reference(&x, &host)?.to_dtype(x.dtype())?;
                let with_nan = x.copy()?;
                let nan = Tensor::full(f64::NAN, (1, n), &CPU)?.to_dtype(x.dtype())?;
                with_nan.slice_set(&nan, 0, (to + 1) % rows)?;
                let made = |x: Tensor, coefficients: &Tensor| -> Result<Tensor> {
                    combine_rows_(&x, to, coefficients)?;
                    x.get(to)
                };
                let got = made(with_nan.to_device(&device)?.copy()?, &host.to_device(&device)?)?;
                let what = format!("[{rows}, {n}] {:?} to {to} on {:?}", x.dtype(), device.location());
                assert_close(&what, &got.to_device(&CPU)?, &want, rtol, rtol * (rows as f32).sqrt())?;
                assert_eq!(bits(&got)?, bits(&made(with_nan, &host)?)?, "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn steps_and_differences_are_those_of_the_references() -> Result<()> {
    for device in devices()? {
        for (x, rtol) in cases()? {
            let (rows, n) = x.dims2()?;
            let from = normal(n, &CPU, Philox::new(4, 2))?.to_dtype(x.dtype())?;
            let (x_there, from_there) = (x.to_device(&device)?.copy()?, from.to_device(&device)?);
            let what = format!("[{rows}, {n}] {:?} on {:?}", x.dtype(), device.location());
            let got = moved_along(&from_there, &x_there, rows - 1, 0.37)?;
            let want = moved_along_reference(&from, &x, rows - 1, 0.37)?.to_dtype(x.dtype())?;
            assert_close(&what, &got.to_device(&CPU)?, &want, rtol, rtol)?;
            assert_eq!(bits(&got)?, bits(&moved_along(&from, &x, rows - 1, 0.37)?)?, "{what}");
            // The row of the new values may be that of the old ones.
            for places in [(0, rows / 2, rows - 1), (0, 0, rows - 1)] {
                if places.1 == places.2 {
                    continue;
                }
                let changed = x_there.copy()?;
                put_difference_(&changed, &from_there, places)?;
                let want = put_difference_reference(&x, &from, places)?;
                assert_eq!(bits(&changed)?, bits(&want)?, "{what} {places:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn rows_that_are_not_there_are_refused() -> Result<()> {
    let x = Tensor::zeros((3, 4), DType::F32, &CPU)?;
    let (v, c) = (Tensor::zeros(4, DType::F32, &CPU)?, Tensor::zeros(3, DType::F64, &CPU)?);
    let line = |e: candle::Error| e.to_string().lines().next().unwrap_or_default().to_owned();
    let cases = [
        (combine_rows_(&x, 3, &c), "combine_rows_: to must be below 3, the number of rows, got 3"),
        (combine_rows_(&x, 0, &v), "combine_rows_: coefficients must have shape [3], got [4]"),
        (moved_along(&v, &x, 7, 1.).map(drop), "moved_along: row must be below 3, the number of rows, got 7"),
        (moved_along(&c, &x, 0, 1.).map(drop), "moved_along: from must have shape [4], got [3]"),
        (
            put_difference_(&x, &v, (0, 1, 1)),
            "put_difference_: difference must be another row than to and old, got 1, 0 and 1",
        ),
        (
            put_difference_(&x, &v, (0, 9, 1)),
            "put_difference_: old must be below 3, the number of rows, got 9",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(result.map_err(line), Err(want.to_owned()));
    }
    Ok(())
}
