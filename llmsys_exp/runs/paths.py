"""The files of a run folder. Nobody else joins their names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunPaths:
    """Every file of one run, as a property of its folder."""

    folder: Path

    @property
    def is_run(self) -> bool:
        """Whether this is a run's folder; one that died early may hold the record of its start alone."""
        return self.job.is_file() or self.start.is_file()

    @property
    def job(self) -> Path:
        """Resolved configuration, plan and reasons: all a worker needs to know."""
        return self.folder / "job.json"

    @property
    def manifest(self) -> Path:
        """Evidence of the run; written last, so that its presence means complete."""
        return self.folder / "manifest.json"

    @property
    def start(self) -> Path:
        """The manifest as far as it is known at launch: what a run that was killed has."""
        return self.folder / "start.json"

    @property
    def export_start(self) -> Path:
        """What is known when the last `llmsys export` of a finished run began."""
        return self.folder / "export_start.json"

    @property
    def reproduction(self) -> Path:
        """What came of doing a recorded run again, metric by metric (`llmsys reproduce`)."""
        return self.folder / "reproduction.json"

    @property
    def code_patch(self) -> Path:
        """What the checkout had beside its commit; a run that went on with other code has a second one."""
        return self.folder / "code.patch"

    @property
    def hydra(self) -> Path:
        """The composed configuration as Hydra writes it."""
        return self.folder / ".hydra"

    @property
    def ds_config(self) -> Path:
        """Exactly what DeepSpeed got."""
        return self.folder / "ds_config.json"

    @property
    def dry_run(self) -> Path:
        """What is asked of a dry run: rank and limit."""
        return self.folder / "dryrun.json"

    @property
    def launch_script(self) -> Path:
        """Starts the training worker by hand."""
        return self.folder / "launch.sh"

    @property
    def metrics(self) -> Path:
        """One JSON line per logged step or evaluation."""
        return self.folder / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """Everything that workers print."""
        return self.folder / "log.txt"

    @property
    def results(self) -> Path:
        """One JSON file per finished worker: results/train.json and so on."""
        return self.folder / "results"

    def result(self, step: str) -> Path:
        """Figures of one finished step; its presence means that the step is complete."""
        return self.results / f"{step}.json"

    @property
    def checkpoints(self) -> Path:
        """States of training to resume from."""
        return self.folder / "checkpoints"

    @property
    def consolidated(self) -> Path:
        """Weights of single checkpoints in fp32, one folder a step."""
        return self.folder / "consolidated"

    @property
    def lock(self) -> Path:
        """Held by the command that works on the run."""
        return self.folder / ".lock"

    @property
    def worker_lock(self) -> Path:
        """Held by rank 0 of the training worker, which may outlive the command."""
        return self.folder / ".worker.lock"

    @property
    def dropped_metrics(self) -> Path:
        """Lines of metrics.jsonl from after the checkpoint that a run went on from."""
        return self.folder / "metrics.dropped.jsonl"

    @property
    def history(self) -> Path:
        """Results and manifests from before the run went on, one folder a time."""
        return self.folder / "history"

    @property
    def tensorboard(self) -> Path:
        """Event files of the mirror TensorBoard."""
        return self.folder / "tensorboard"

    @property
    def mlflow(self) -> Path:
        """Store of the mirror MLflow, unless it is a server."""
        return self.folder / "mlruns"

    @property
    def attempts(self) -> Path:
        """Attempts that ran out of memory: settings, failure, figures."""
        return self.folder / "attempts.json"

    @property
    def tokenizer(self) -> Path:
        """Stand-in tokenizer of a model that has none."""
        return self.folder / "tokenizer"

    @property
    def adapter(self) -> Path:
        """Trained adapter in the format of peft."""
        return self.folder / "adapter"

    @property
    def merged(self) -> Path:
        """Trained model as an ordinary transformers folder."""
        return self.folder / "merged"

    @property
    def trained_base(self) -> Path:
        """The base below `adapter`, where training changed it too (`method.lora.train_base`)."""
        return self.folder / "base"

    @property
    def perceptron(self) -> Path:
        """Trained weights of a perceptron (`model.kind=mlp`)."""
        return self.folder / "perceptron"

    @property
    def quantized(self) -> Path:
        """The model of `merged`, quantised with GPTQ."""
        return self.folder / "quantized"

    @property
    def export_job(self) -> Path:
        """What the last `llmsys export` asked for: job.json with its settings changed."""
        return self.folder / "export_job.json"

    @property
    def status(self) -> Path:
        """How a run ended that is not complete: `stopped` or `failed`, with the kind of failure."""
        return self.folder / "status.json"

    @property
    def generations(self) -> Path:
        """Every answer, one JSON line each, in the order in which they were finished."""
        return self.folder / "generations.jsonl"

    @property
    def journal_key(self) -> Path:
        """What the answers in `generations` depend on, as hashes: a second start has to have the same."""
        return self.folder / "generations.key.json"

    @property
    def answers(self) -> Path:
        """Every answer as a table, in prompt order."""
        return self.folder / "generations.parquet"

    @property
    def outputs(self) -> Path:
        """Every n-th answer."""
        return self.folder / "outputs.jsonl"

    @property
    def report(self) -> Path:
        """All of it as one page."""
        return self.folder / "report.html"

    @property
    def loss_plot(self) -> Path:
        """Loss over the steps."""
        return self.folder / "loss.png"

    @property
    def parallelism_plot(self) -> Path:
        """Bytes, memory and bubble of the ways of training on several ranks."""
        return self.folder / "parallelism.png"

    @property
    def memory_plot(self) -> Path:
        """Planned and measured memory."""
        return self.folder / "memory.png"
