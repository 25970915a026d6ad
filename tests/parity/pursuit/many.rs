//! Pursuits of many signals at once, which only GPUs make: the atoms and coefficients of one signal
//! after the other.
use super::problem;
use candle::{DType, Device, Result};
use chandlery::dictionary::pursuit::{PursuitMethod, SparseCoder};
use chandlery_ops::codes::{ErrorTarget, SparseCodes};
use chandlery_tests::devices;

/// Signals, atoms, samples, steps, and signals at a time.
const SIZES: [(usize, usize, usize, usize, Option<usize>); 4] =
    [(1, 1, 1, 1, None), (40, 30, 20, 4, None), (300, 128, 64, 8, None), (129, 200, 64, 6, Some(50))];

#[test]
fn codes_are_those_of_the_cpu() -> Result<()> {
    let methods = [PursuitMethod::SubspacePursuit, PursuitMethod::ProjectionOmp, PursuitMethod::LookAheadOls];
    for (m, n, p, s, chunk) in SIZES {
        let (signals, dictionary) = problem(m, n, p, DType::F64)?;
        for (method, error) in methods.into_iter().flat_map(|method| [(method, None), (method, Some(0.5))]) {
            let error = error.map(ErrorTarget::Relative);
            let coder = SparseCoder { error, chunk, ..SparseCoder::new(method, s) };
            let want = coder.encode(&signals, &dictionary)?;
            for device in devices()?.into_iter().filter(Device::is_cuda) {
                let got = coder.encode(&signals.to_device(&device)?, &dictionary.to_device(&device)?)?;
                let what = format!("{} of {s}, {m}x{n}x{p}, {device:?}", method.name());
                let dense = |codes: &SparseCodes| codes.to_dense()?.to_device(&Device::Cpu);
                assert_eq!(got.count.to_vec1::<u32>()?, want.count.to_vec1::<u32>()?, "{what}");
                let (got, want) = (dense(&got)?, dense(&want)?);
                let scale = want.abs()?.max_all()?.to_scalar::<f64>()?;
                let off = (got - want)?.abs()?.max_all()?.to_scalar::<f64>()?;
                // The same sums in another order; a wrong atom is off by its whole coefficient.
                assert!(off <= 1e-9 * scale, "{what}: off by {off} of {scale}");
            }
        }
    }
    Ok(())
}
