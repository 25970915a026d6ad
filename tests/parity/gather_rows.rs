//! Rows in any order: the bits of the reference, whatever their length and wherever the matrix
//! begins.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::{gather_rows, gather_rows_by, gather_rows_reference};
use chandlery_ops::core::{raise_to_largest_, uniform};
use chandlery_tests::devices;

#[test]
fn gathered_rows_are_the_bits_of_the_reference() -> Result<()> {
    // Rows of less than a unit of 16 bytes, of some, and of more than a block takes at once; in
    // numbers of 1 to 8 bytes.
    let shapes = [(1, 1), (5, 3), (9, 7), (300, 4), (70, 12), (33, 49), (40, 784), (9, 4099), (6, 20_736)];
    let types = [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64];
    for device in devices()? {
        for (n_rows, n_cols) in shapes {
            for dtype in types {
                let values = uniform((n_rows + 1, n_cols), &Device::Cpu, Philox::new(21, 1))?;
                let all = (values * 250.)?.to_dtype(dtype)?;
                // From the second row on, which may begin anywhere.
                for skipped in [0, 1] {
                    let x = all.narrow(0, skipped, n_rows)?;
                    let n = n_rows as u32;
                    let rows: Vec<u32> = (0..2 * n + 1).map(|i| (i * 7 + 3) % n).collect();
                    let got = gather_rows(&x.to_device(&device)?, &rows)?;
                    let of_view = gather_rows(&all.to_device(&device)?.narrow(0, skipped, n_rows)?, &rows)?;
                    let want = gather_rows_reference(&x, &rows)?;
                    let index = Tensor::from_slice(&rows, rows.len(), &device)?;
                    let by = gather_rows_by(&all.to_device(&device)?.narrow(0, skipped, n_rows)?, &index)?;
                    for (how, got) in [("", got), (" of a view", of_view), (" by a tensor", by)] {
                        let what = format!("[{n_rows}, {n_cols}] {dtype:?}{how} on {:?}", device.location());
                        assert_eq!(got.dims(), want.dims(), "{what}");
                        let numbers = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
                        assert!(numbers(&got.to_device(&Device::Cpu)?)? == numbers(&want)?, "{what}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn rows_that_there_are_not_are_all_bits_set_on_a_gpu_and_the_others_come() -> Result<()> {
    for device in devices()?.into_iter().filter(Device::is_cuda) {
        for n_cols in [1, 3, 4, 784] {
            let x = uniform((5, n_cols), &device, Philox::new(22, 0))?;
            let rows = Tensor::new(&[4u32, 5, 0, u32::MAX, 1 << 31], &device)?;
            let got = gather_rows_by(&x, &rows)?.to_vec2::<f32>()?;
            let of = x.to_vec2::<f32>()?;
            assert!(got[0] == of[4] && got[2] == of[0], "{n_cols} columns");
            assert!(
                [1, 3, 4].iter().all(|&i| got[i].iter().all(|x| x.is_nan())),
                "{n_cols} columns: {got:?}"
            );
            let bytes = gather_rows_by(&x.to_dtype(DType::U8)?, &rows)?.to_vec2::<u8>()?;
            assert!(bytes[1].iter().all(|&x| x == u8::MAX), "{n_cols} columns");
        }
    }
    Ok(())
}

#[test]
fn the_largest_of_numbers_is_noted_on_every_device() -> Result<()> {
    for device in devices()? {
        let largest = Tensor::zeros(1, DType::U32, &device)?;
        for (len, at, want) in [(1, 0, 7u32), (33, 32, 9), (5000, 2500, u32::MAX), (70_000, 0, u32::MAX)] {
            let mut x = vec![3u32; len];
            x[at] = want.min(if len == 70_000 { 4 } else { want });
            raise_to_largest_(&largest, &Tensor::from_vec(x, len, &device)?)?;
            assert_eq!(largest.to_vec1::<u32>()?, [want], "{len} on {:?}", device.location());
        }
        raise_to_largest_(&largest, &Tensor::zeros(0, DType::U32, &device)?)?;
        assert_eq!(largest.to_vec1::<u32>()?, [u32::MAX]);
    }
    Ok(())
}
