//! Settings and input that make no sense are refused, with what must hold.
use super::{CPU, first_line, pairs, start};
use candle::{DType, Result, Tensor};
use chandlery::sparse_autoencoder::{
    Cost, CostConfig, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer,
    serial::serial_cost,
};
use chandlery::{MinibatchTrainer, Philox};

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let (rows, model, config) = (pairs(10)?, start()?, SparseAutoencoderConfig::new(8, 6));
    let fit = SparseAutoencoderLbfgsTrainConfig::default();
    let run = |fit: SparseAutoencoderLbfgsTrainConfig, rows: &Tensor| {
        SparseAutoencoderLbfgsTrainer::new(&model, fit, rows).map(drop).map_err(first_line)
    };
    let with = |cost: CostConfig| run(SparseAutoencoderLbfgsTrainConfig { cost, ..fit }, &rows);
    let cost = CostConfig::default();
    let trainer = |config: SparseAutoencoderTrainConfig| {
        SparseAutoencoderTrainer::new(&model, config).map(drop).map_err(first_line)
    };
    let whole = Cost::new(config.clone(), cost, &rows, None, DType::F32, &CPU)?;
    let cases = [
        (
            with(CostConfig { sparsity_target: 0., ..cost }),
            "CostConfig: sparsity_target must be in (0, 1), got 0",
        ),
        (
            with(CostConfig { sparsity_target: 1., ..cost }),
            "CostConfig: sparsity_target must be in (0, 1), got 1",
        ),
        (
            with(CostConfig { weight_decay: -1., ..cost }),
            "CostConfig: weight_decay must be at least 0, got -1",
        ),
        (
            with(CostConfig { sparsity_weight: f64::NAN, ..cost }),
            "CostConfig: sparsity_weight must be at least 0, got NaN",
        ),
        (
            run(SparseAutoencoderLbfgsTrainConfig { iterations: 0, ..fit }, &rows),
            "SparseAutoencoderLbfgsTrainConfig: iterations must be at least 1, got 0",
        ),
        (
            run(SparseAutoencoderLbfgsTrainConfig { chunk: Some(0), ..fit }, &rows),
            "SparseAutoencoderLbfgsTrainConfig: chunk must be at least 1, got 0",
        ),
        (run(fit, &rows.narrow(1, 0, 7)?), "Cost: rows must have shape [batch, 8], got [10, 7]"),
        (run(fit, &rows.narrow(0, 0, 0)?), "Cost: rows must be at least 1, got 0"),
        (
            trainer(SparseAutoencoderTrainConfig { batch: 0, ..SparseAutoencoderTrainConfig::default() }),
            "SparseAutoencoderTrainConfig: batch must be at least 1, got 0",
        ),
        (
            SparseAutoencoder::init(SparseAutoencoderConfig::new(0, 3), Philox::new(0, 0), &CPU)
                .map(drop)
                .map_err(first_line),
            "SparseAutoencoderConfig: n_visible must be at least 1, got 0",
        ),
        (
            Cost::new(config.clone(), cost, &rows, None, DType::BF16, &CPU).map(drop).map_err(first_line),
            "Cost: dtype must be f32 or f64, got BF16",
        ),
        (
            whole.evaluate(&Tensor::zeros(9, DType::F32, &CPU)?).map(drop).map_err(first_line),
            "SparseAutoencoder: theta must be contiguous of shape [110], got [9]",
        ),
        (
            whole.evaluate(&Tensor::zeros(110, DType::F64, &CPU)?).map(drop).map_err(first_line),
            "Cost: theta must be F32 on Cpu, got F64 on Cpu",
        ),
        (
            SparseAutoencoderTrainer::new(
                &model,
                SparseAutoencoderTrainConfig { batch: 9, ..SparseAutoencoderTrainConfig::default() },
            )?
            .step(&rows, None)
            .map_err(first_line),
            "SparseAutoencoderTrainer::step: rows must have shape [9, 8], or fewer rows, at least 1, got [10, 8]",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(result, Err(want.to_owned()));
    }
    assert!(serial_cost(&config, &cost, &[0f32; 109], &[0.; 8]).is_none());
    assert!(serial_cost(&config, &cost, &[0f32; 110], &[0.; 9]).is_none());
    Ok(())
}
