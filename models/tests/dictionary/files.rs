//! Dictionaries in folders, names, and what is refused.
use super::{CPU, M, N, P, beginning, bits, coder, config, first_line, signals};
use candle::{DType, Result, Tensor};
use chandlery::dictionary::{
    CodeError, Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Init,
    OnlineDictionaryTrainConfig, OnlineDictionaryTrainer, PursuitMethod, Replace, SparseCoder, UpdateRule,
    init,
};
use chandlery::{Decode, Encode, FullBatchTrainer, LoadOptions, MinibatchTrainer, Model, Trainer};
use chandlery_ops::Philox;

#[test]
fn a_saved_dictionary_comes_back_and_is_a_layer() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for dtype in [DType::F32, DType::F64] {
        let y = signals()?.to_dtype(dtype)?;
        let mut saved = beginning(&y)?;
        saved.save_pretrained(folder.path())?;
        let back = Dictionary::from_pretrained(folder.path(), &LoadOptions::default())?;
        assert_eq!(back.config(), saved.config());
        assert_eq!(back.atoms().dtype(), dtype);
        assert!(bits(back.atoms())? == bits(saved.atoms())?);
        // What another candle project finds in the file.
        let tensors = candle::safetensors::load(folder.path().join("model.safetensors"), &CPU)?;
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["dictionary"]);
        assert_eq!(tensors["dictionary"].dims(), [N, P]);

        let codes = back.encode(&y)?;
        let dense = codes.to_dense()?;
        assert_eq!(dense.dims(), [M, N]);
        let off = (back.decode(&codes)? - dense.matmul(back.atoms())?)?.to_dtype(DType::F64)?;
        assert!(off.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()? < 1e-5);
        // The pursuit is part of the configuration, with its error.
        for error in [None, Some(CodeError::Absolute(0.1 + 0.2)), Some(CodeError::Relative(0.1))] {
            let config = DictionaryConfig { method: PursuitMethod::Ols, error, ..saved.config().clone() };
            saved = Dictionary::from_tensor(config, saved.atoms().clone())?;
            saved.save_pretrained(folder.path())?;
            let text = std::fs::read_to_string(folder.path().join("config.json"))?;
            assert!(text.contains("\"method\": \"ols\""), "{text}");
            let back = Dictionary::from_pretrained(folder.path(), &LoadOptions::default())?;
            assert_eq!(back.config(), saved.config());
        }
    }
    Ok(())
}

#[test]
fn a_trainer_keeps_the_pursuit_of_its_dictionary() -> Result<()> {
    let y = signals()?;
    let (n, p) = (12, y.dim(1)?);
    let atoms = beginning(&y)?.atoms().clone();
    let configs = [
        DictionaryConfig::new(n, p, 4),
        DictionaryConfig { method: PursuitMethod::Ols, nonnegative: true, ..DictionaryConfig::new(n, p, 2) },
        DictionaryConfig { error: Some(CodeError::Relative(0.3)), ..DictionaryConfig::new(n, p, 7) },
    ];
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    for own in configs {
        let first = Dictionary::from_tensor(own.clone(), atoms.clone())?;
        let mut batch =
            DictionaryTrainer::new(first.clone(), &y, DictionaryTrainConfig::default(), Philox::new(2, 1))?;
        batch.step()?;
        assert_eq!(batch.best().config(), &own);
        assert!(batch.codes().width() <= own.n_nonzero);
        batch.save(&path, &serde_json::Value::Null)?;
        let (again, _) = DictionaryTrainer::load(&path, &y, &CPU)?;
        assert_eq!(again.current().config(), &own);

        let mut online =
            OnlineDictionaryTrainer::new(first, OnlineDictionaryTrainConfig::default(), Philox::new(2, 1))?;
        assert!(online.partial_fit(&y)?.mean_count <= own.n_nonzero as f64);
        assert_eq!(online.dictionary().config(), &own);
        online.save(&path, &serde_json::Value::Null)?;
        let (again, _) = OnlineDictionaryTrainer::load(&path, &CPU)?;
        assert_eq!(again.dictionary().config(), &own);
    }
    Ok(())
}

#[test]
fn names_are_those_of_files() -> Result<()> {
    let json = |x: &dyn Fn() -> serde_json::Result<String>| x().map_err(candle::Error::wrap);
    for rule in UpdateRule::ALL {
        assert_eq!(json(&|| serde_json::to_string(&rule))?, format!("\"{}\"", rule.name()));
        assert_eq!(rule.name().parse(), Ok(rule));
    }
    for replace in Replace::ALL {
        assert_eq!(json(&|| serde_json::to_string(&replace))?, format!("\"{}\"", replace.name()));
        assert_eq!(replace.name().parse(), Ok(replace));
    }
    assert_eq!(
        "svd".parse::<UpdateRule>(),
        Err("the rule of update must be one of ksvd, ak-svd, sgk, nsgk, mod, got svd".to_owned())
    );
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() -> Result<()> {
    let y = signals()?;
    let says = |got: Result<()>, want: &str| assert_eq!(first_line(got.expect_err("accepted")), want);
    let train = |config: DictionaryTrainConfig, y: &Tensor| {
        DictionaryTrainer::new(beginning(&signals()?)?, y, config, Philox::new(0, 0)).map(|_| ())
    };
    let good = config(UpdateRule::AkSvd);
    says(
        train(DictionaryTrainConfig { group: 0, ..good.clone() }, &y),
        "DictionaryTrainConfig: group must be at least 1, got 0",
    );
    says(
        train(
            DictionaryTrainConfig { coder: Some(SparseCoder { n_nonzero: 13, ..coder() }), ..good.clone() },
            &y,
        ),
        "DictionaryTrainConfig: n_nonzero must be in 1..=12, the number of atoms, got 13",
    );
    says(
        train(DictionaryTrainConfig { max_coherence: Some(1.5), ..good.clone() }, &y),
        "DictionaryTrainConfig: max_coherence must be in (0, 1], got 1.5",
    );
    says(
        train(DictionaryTrainConfig { n_fixed: 13, ..good.clone() }, &y),
        "DictionaryTrainConfig: n_fixed must be at most 12, the number of atoms, got 13",
    );
    says(
        train(DictionaryTrainConfig { coherence_penalty: 1., ..config(UpdateRule::Mod) }, &y),
        "DictionaryTrainConfig: coherence_penalty must be 0 with mod, which has none, got 1; take another rule",
    );
    says(
        train(good.clone(), &y.narrow(1, 0, 8)?),
        "DictionaryTrainer: rows must have shape [batch, 9], got [400, 8]",
    );
    says(
        train(good.clone(), &y.narrow(0, 0, 0)?),
        "DictionaryTrainer: signals must be at least one, got none",
    );
    let nan = (&y / 0.)?;
    assert!(train(good, &nan).is_err());

    let mut online = OnlineDictionaryTrainer::new(
        beginning(&y)?,
        OnlineDictionaryTrainConfig { coder: Some(coder()), ..OnlineDictionaryTrainConfig::default() },
        Philox::new(0, 0),
    )?;
    says(
        online.partial_fit(&y.narrow(1, 0, 8)?).map(|_| ()),
        "OnlineDictionaryTrainer::partial_fit: batch must have shape [batch, 9], got [400, 8]",
    );
    says(
        online.partial_fit(&y.narrow(0, 0, 0)?).map(|_| ()),
        "OnlineDictionaryTrainer::partial_fit: signals of a batch must be at least 1, got 0",
    );
    says(
        OnlineDictionaryTrainer::new(
            beginning(&y)?,
            OnlineDictionaryTrainConfig {
                coder: Some(coder()),
                sweeps: 0,
                ..OnlineDictionaryTrainConfig::default()
            },
            Philox::new(0, 0),
        )
        .map(|_| ()),
        "OnlineDictionaryTrainConfig: sweeps must be at least 1, got 0",
    );
    says(
        init(&Init::Dct, 16, &y.narrow(1, 0, 8)?, Philox::new(0, 0)).map(|_| ()),
        "init: n_features must be a square for a DCT of square patches, got 8; take another start",
    );
    says(
        init(&Init::Given(y.clone()), 16, &y, Philox::new(0, 0)).map(|_| ()),
        "init: given atoms must have shape [16, 9], got [400, 9]",
    );
    says(
        Dictionary::from_pretrained("neither/here/nor/there", &LoadOptions::default()).map(|_| ()),
        "neither/here/nor/there: no such folder",
    );
    says(
        DictionaryConfig::new(4, 9, 5).validate(),
        "DictionaryConfig: n_nonzero must be in 1..=4, the number of atoms, got 5",
    );
    says(
        DictionaryConfig { error: Some(CodeError::Absolute(-1.)), ..DictionaryConfig::new(4, 9, 2) }
            .validate(),
        "DictionaryConfig: error must be at least 0, got -1",
    );
    says(
        Dictionary::from_tensor(DictionaryConfig::new(4, 9, 2), y.clone()).map(|_| ()),
        "Dictionary: atoms must be f32 or f64 of shape [4, 9], got F64 of shape [400, 9]",
    );
    Ok(())
}
