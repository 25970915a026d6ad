//! Inner products of rows: close to the exact ones, and the same bits on every device.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::row_dots;
use chandlery_ops::core::normal;
use chandlery_tests::devices;

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn row_dots_are_the_bits_of_the_cpu() -> Result<()> {
    for device in devices()? {
        // Columns around the 256 lanes and the 16,384 columns of a segment; 3289 is 64-25-64.
        for (rows, cols) in [(1, 1), (3, 255), (2, 257), (24, 3289), (5, 16_384), (4, 16_385), (3, 81_925)] {
            for dtype in [DType::F32, DType::F64] {
                let x: Tensor = normal((rows, cols), &Device::Cpu, Philox::new(3, 1))?.to_dtype(dtype)?;
                let picks = [rows - 1, 0, rows / 2];
                let got = row_dots(&x.to_device(&device)?, &picks)?.to_device(&Device::Cpu)?;
                let what = format!("row_dots [{rows}, {cols}] {dtype:?} on {:?}", device.location());
                let bits = |t: &Tensor| -> Result<Vec<u64>> {
                    Ok(t.flatten_all()?.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect())
                };
                assert_eq!(bits(&got)?, bits(&row_dots(&x, &picks)?)?, "{what}");
            }
        }
    }
    Ok(())
}
