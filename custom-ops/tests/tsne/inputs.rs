//! Data, layouts and graphs, and how results are compared.
use candle::{DType, Device, Device::Cpu, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{Affinities, Metric, Neighbours, knn, perplexity_search, symmetrize};

/// Independent normal entries.
pub fn gaussian(n: usize, d: usize, stream: u64) -> Result<Tensor> {
    normal((n, d), &Cpu, Philox::new(21, stream))
}

/// Rows near a plane of `rank` dimensions, as those of natural data are.
pub fn low_rank(n: usize, d: usize, rank: usize, stream: u64) -> Result<Tensor> {
    let rest = (gaussian(n, d, stream + 2)? * 0.1)?;
    gaussian(n, rank, stream)?.matmul(&gaussian(rank, d, stream + 1)?)? + rest
}

/// Layouts that are hard, by name: `n` points in `d` dimensions, around the middle.
pub fn layouts(n: usize, d: usize) -> Result<Vec<(&'static str, Tensor)>> {
    let plain = (gaussian(n, d, 5)? * 4.)?;
    let half = n.div_ceil(2);
    let equal = Tensor::ones((half, d), DType::F32, &Cpu)?;
    let mut outlier = plain.to_vec2::<f32>()?;
    outlier[n / 2] = vec![3000.; d];
    let far = Tensor::cat(&[&plain.narrow(0, 0, half)?, &(plain.narrow(0, half, n - half)? + 1e6)?], 0)?;
    Ok(vec![
        ("early", (&plain * 1e-5)?),
        ("tiny", (&plain * 1e-30)?),
        ("all equal", (plain.zeros_like()? + 0.3)?),
        ("half equal", Tensor::cat(&[&equal, &plain.narrow(0, half, n - half)?], 0)?),
        ("two far clusters", far),
        ("an outlier", Tensor::new(outlier, &Cpu)?),
        ("plain", plain),
    ])
}

/// The affinities of `n` random rows and their neighbours.
pub fn graph(n: usize, k: usize) -> Result<(Neighbours, Affinities)> {
    let found = knn(&gaussian(n, 5, 9)?, k, Metric::Euclidean)?;
    let p = perplexity_search(&found.distances, &[(k as f64 / 3.).max(1.)])?;
    let graph = symmetrize(&found.indices, &p)?;
    Ok((found, graph))
}

pub fn flat(x: &Tensor) -> Result<Vec<f64>> {
    x.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

/// The root of the mean square of `x`.
pub fn rms(x: &[f64]) -> f64 {
    (x.iter().map(|x| x * x).sum::<f64>() / x.len().max(1) as f64).sqrt()
}

/// Asserts that entries differ by at most `limit` times the largest magnitude wanted, and that none
/// is NaN.
pub fn assert_near(what: &str, got: &[f64], want: &[f64], limit: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(0f64, |a, x| a.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let used = (got - want).abs() / (limit * largest);
        assert!(
            got == want || used <= 1.,
            "{what}: entry {i}: got {got}, want {want}, {used} times the tolerance"
        );
    }
}

/// The first line of the error.
pub fn message<T>(result: Result<T>) -> String {
    let error = result.err().expect("accepted").to_string();
    error.lines().next().unwrap_or_default().to_owned()
}

/// What `run` returns on 1 and on 3 threads.
pub fn on_threads<T: Send>(run: impl Fn() -> T + Sync) -> [T; 2] {
    [1, 3].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(&run)
    })
}

pub const CPU: Device = Cpu;
