//! The linear classifier that measures features: the same minimum on every device, in f64 and in
//! f32.
use candle::{Device, Result, Tensor};
use chandlery::softmax::{Softmax, SoftmaxTrainConfig};
use chandlery_ops::Philox;
use chandlery_ops::core::uniform;
use chandlery_tests::{assert_close, devices};

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn the_classifier_is_the_same_on_every_device() -> Result<()> {
    // The second has more values than are fitted in f64; it ends within the decrease of its last
    // step, 5e-5 nats, of the minimum.
    for (n, n_features, atol) in [(300, 20, 1e-4f32), (5000, 900, 0.05)] {
        let x = uniform((n, n_features), &Device::Cpu, Philox::new(70, 0))?;
        let first = x.narrow(1, 0, 3)?.to_vec2::<f32>()?;
        let class =
            |row: &Vec<f32>| row.iter().enumerate().fold(0, |c, (i, v)| if *v > row[c] { i } else { c });
        let labels: Vec<u32> = first.iter().map(|row| class(row) as u32).collect();
        let fitted = |device: &Device| -> Result<(Tensor, f64)> {
            let (x, y) = (x.to_device(device)?, Tensor::new(labels.as_slice(), device)?);
            let (softmax, _) = Softmax::fit(&x, &y, 3, &SoftmaxTrainConfig::default())?;
            let log_p = softmax.log_probabilities(&x)?.narrow(0, 0, 50)?.to_device(&Device::Cpu)?;
            Ok((log_p, softmax.accuracy(&x, &y)?))
        };
        let (want, want_accuracy) = fitted(&Device::Cpu)?;
        assert!(want_accuracy > 0.9, "{n} rows of {n_features}: {want_accuracy}");
        for device in devices()? {
            let (got, accuracy) = fitted(&device)?;
            let what = format!("{n} rows of {n_features} on {:?}", device.location());
            assert_close(&what, &got, &want, 1e-3, atol)?;
            assert!((accuracy - want_accuracy).abs() <= 2e-3, "{what}: {accuracy}, not {want_accuracy}");
        }
    }
    Ok(())
}
