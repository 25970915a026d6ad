//! Networks in words: the sizes of their layers.
use chandlery::dbn::DbnConfig;
use chandlery::feedforward::{FeedforwardConfig, Task};
use chandlery::labelled::LabelledDbnConfig;

/// `784-500-500`: the sizes of a network's layers, the input's first.
pub fn of_network(dbn: &DbnConfig) -> String {
    let input = dbn.layers.first().map(|layer| layer.n_visible);
    let sizes = input.into_iter().chain(dbn.layers.iter().map(|layer| layer.n_hidden));
    sizes.map(|n| n.to_string()).collect::<Vec<_>>().join("-")
}

/// `784-500-10`: the sizes of a fine-tuned network's layers, the input's first.
pub fn of_fine_tuned(network: &FeedforwardConfig) -> String {
    let sizes = [network.n_inputs()].into_iter().chain(network.layers.iter().map(|layer| layer.n_outputs));
    sizes.map(|n| n.to_string()).collect::<Vec<_>>().join("-")
}

/// What a fine-tuned network is.
pub fn noun(network: &FeedforwardConfig) -> &'static str {
    match network.task {
        Task::Classify => "classifier",
        Task::Autoencode { .. } => "autoencoder",
    }
}

/// `784-500-[500+10]-2000`: the sizes of a network's layers, the labels beside the layer that they stand with.
pub fn of_labelled(config: &LabelledDbnConfig) -> String {
    let m = config.n_lower();
    let size = |(l, n): (usize, &usize)| match l == m {
        true => format!("[{n}+{}]", config.n_classes),
        false => n.to_string(),
    };
    config.sizes.iter().enumerate().map(size).collect::<Vec<_>>().join("-")
}
