//! Products of numbers that were rounded to bf16 once are as close to f64 as those that round what
//! they read, also at widths whose lines are padded and where the decay comes with the products.
use super::{CPU, model, rows, theta};
use candle::{DType, Result, Tensor};
use chandlery::sparse_autoencoder::{
    Cost, CostConfig, Decoder, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderTrainConfig,
    SparseAutoencoderTrainer,
};
use chandlery::{MinibatchTrainer, Philox, Precision, Trainer};

/// Visible units, features and rows; the last network is so large that products add the decay.
const SIZES: [(usize, usize, usize); 6] =
    [(1, 2, 3), (65, 77, 7), (64, 96, 40), (17, 131, 193), (785, 501, 33), (2101, 2003, 5)];

fn settings(precision: Precision) -> CostConfig {
    CostConfig { weight_decay: 0.01, sparsity_target: 0.05, precision, ..CostConfig::default() }
}

/// `J` and its gradient, over all rows at once or in one chunk of them.
fn evaluated(
    config: &SparseAutoencoderConfig,
    precision: Precision,
    (x, at): (&Tensor, &Tensor),
    chunk: Option<usize>,
) -> Result<(f64, Tensor)> {
    let cost = Cost::new(config.clone(), settings(precision), x, chunk, x.dtype(), &CPU)?;
    let (value, gradient) = cost.evaluate(at)?;
    Ok((value.to_scalar()?, gradient.to_dtype(DType::F64)?))
}

/// `‖a − b‖ / ‖b‖`
fn apart(a: &Tensor, b: &Tensor) -> Result<f64> {
    let norm = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f64>().map(f64::sqrt);
    Ok(norm(&(a - b)?)? / norm(b)?)
}

#[test]
fn numbers_rounded_once_cost_no_accuracy() -> Result<()> {
    for decoder in [Decoder::Sigmoid, Decoder::Linear] {
        for (v, h, m) in SIZES {
            let config = model(v, h, decoder);
            // Inputs of units of about 1.
            let at = (theta(&config, DType::F64)? * (4. / (v.max(h) as f64).sqrt()))?;
            let x = rows(m, v, DType::F64)?;
            let (narrow_x, narrow_at) = (x.to_dtype(DType::F32)?, at.to_dtype(DType::F32)?);
            let of_f32 = (&narrow_x, &narrow_at);
            let (want, want_gradient) = evaluated(&config, Precision::F32, (&x, &at), None)?;
            let (in_products, of_products) = evaluated(&config, Precision::Bf16, of_f32, Some(m))?;
            let (once, of_once) = evaluated(&config, Precision::Bf16, of_f32, None)?;
            let what = format!("{v}-{h}-{v}, {m} rows, {decoder:?}");
            // Numbers of f32 before that are rounded the other way by another order of a sum, and the
            // sums of rounded deltas, are all that differs.
            assert!((once - in_products).abs() <= 1e-5 * want, "{what}: {once}, {in_products}");
            assert!((once - want).abs() <= 1e-3 * want, "{what}: {once}, want {want}");
            let n = v * h;
            for (part, start, len) in [("W", 0, n), ("W'", n, n), ("b", 2 * n, h), ("c", 2 * n + h, v)] {
                let of = |gradient: &Tensor| gradient.narrow(0, start, len);
                let (once, in_products) = (
                    apart(&of(&of_once)?, &of(&want_gradient)?)?,
                    apart(&of(&of_products)?, &of(&want_gradient)?)?,
                );
                assert!(once > 0. && once <= 0.02, "{what}: {once} of {part}");
                assert!(once <= 1.1 * in_products + 1e-3, "{what}: {once} of {part}, before {in_products}");
            }
        }
    }
    Ok(())
}

#[test]
fn evaluations_in_turn_leave_earlier_results_as_they_are_and_repeat_themselves() -> Result<()> {
    for (v, h, m) in SIZES {
        let config = model(v, h, Decoder::Sigmoid);
        let x = rows(m, v, DType::F32)?;
        let cost = Cost::new(config.clone(), settings(Precision::Bf16), &x, None, DType::F32, &CPU)?;
        let read = |made: &(Tensor, Tensor)| -> Result<(f64, Vec<f32>)> {
            Ok((made.0.to_scalar()?, made.1.to_vec1()?))
        };
        let mut made = vec![];
        for scale in [0.1, 0.3, 0.1] {
            let result = cost.evaluate(&(theta(&config, DType::F32)? * scale)?)?;
            made.push((read(&result)?, result));
        }
        assert!(made[0].0 == made[2].0 && made[0].0 != made[1].0, "{v}-{h}-{v}");
        for (then, result) in &made {
            assert!(read(result)? == *then, "{v}-{h}-{v}: a result was written over");
        }
        let parts = cost.parts(&(theta(&config, DType::F32)? * 0.3)?)?;
        assert_eq!(parts.cost, made[1].0.0);
    }
    Ok(())
}

#[test]
fn minibatches_are_those_of_the_step() -> Result<()> {
    const BATCH: usize = 9;
    let start = SparseAutoencoder::init(model(65, 77, Decoder::Sigmoid), Philox::new(8, 0), &CPU)?;
    let all = rows(3 * BATCH, 65, DType::F32)?;
    let config = SparseAutoencoderTrainConfig {
        batch: BATCH,
        cost: settings(Precision::Bf16),
        ..SparseAutoencoderTrainConfig::default()
    };
    let mut trainer = SparseAutoencoderTrainer::new(&start, config.clone())?;
    for at in [0, BATCH, 2 * BATCH, 0] {
        let minibatch = all.narrow(0, at, BATCH)?;
        let of_step = Cost::new(start.config().clone(), config.cost, &minibatch, None, DType::F32, &CPU)?;
        let (want, _) = of_step.evaluate(&trainer.model()?.flat()?)?;
        trainer.step(&minibatch, None)?;
        assert_eq!(trainer.metrics()?.cost, want.to_scalar::<f64>()?, "rows from {at} on");
    }
    Ok(())
}
