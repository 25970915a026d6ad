//! Rows in any order: the bits of the reference, whatever their length and wherever the matrix begins.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{Philox, gather_rows, gather_rows_reference, uniform};
use chandlery_tests::devices;

#[test]
fn gathered_rows_are_the_bits_of_the_reference() -> Result<()> {
    // Rows of less than a unit of 16 bytes, of some, and of more than a block takes at once; in numbers of 1 to 8 bytes.
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
                    for (how, got) in [("", got), (" of a view", of_view)] {
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
