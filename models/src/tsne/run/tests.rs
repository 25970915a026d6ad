//! What only a run itself sees.
use super::TsneTrainer;
use crate::tsne::{Method, Start, TsneConfig};
use crate::{FullBatchTrainer, Philox};
use candle::{Device::Cpu, Result};
use chandlery_ops::core::normal;

#[test]
fn the_second_coordinate_of_a_line_is_0_to_the_end() -> Result<()> {
    let rows = normal((150, 4), &Cpu, Philox::new(75, 0))?;
    for method in [Method::Exact, Method::BarnesHut] {
        for (start, degrees_of_freedom) in [(Start::Pca, 1.), (Start::Random, 0.5), (Start::Spectral, 2.)] {
            let config = TsneConfig {
                n_dims: 1,
                perplexity: 8.,
                method: Some(method),
                start,
                degrees_of_freedom,
                early_iterations: 60,
                iterations: 120,
                ..TsneConfig::default()
            };
            let mut run = TsneTrainer::new(config, Philox::new(75, 1), &rows)?;
            let first = run.layout()?.flatten_all()?.to_vec1::<f32>()?;
            while run.step()?.is_some() {}
            assert_eq!(run.iteration, 180);
            let points = run.state.layout.to_vec2::<f32>()?;
            assert!(points.iter().all(|point| point[1] == 0.), "{method:?}, {start:?}: {points:?}");
            assert_ne!(run.layout()?.flatten_all()?.to_vec1::<f32>()?, first, "{method:?}, {start:?}");
        }
    }
    Ok(())
}
