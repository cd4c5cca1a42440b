"""Lightning: the same losses and weights as a plain loop."""

import copy
from collections.abc import Iterable

import lightning
import torch
from torch.utils.data import DataLoader

from vaswani_transformer.data.phrasebook import phrasebook


class Translation(lightning.LightningModule):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.losses = model, []

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


def plain_losses(model: torch.nn.Module, batches: Iterable[dict[str, torch.Tensor]]) -> list[float]:
    optimizer = Translation(model).configure_optimizers()
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training(model, encode, translate, tmp_path):
    """Trainer.fit of a LightningModule against a plain loop; its checkpoint loaded"""
    batches = DataLoader(phrasebook("train")[:64], batch_size=16, collate_fn=encode)
    plain = copy.deepcopy(model)  # in evaluation mode, which Lightning keeps: no dropout
    module = Translation(model)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    trainer.fit(module, batches)
    expected = plain_losses(plain, batches)
    error = max(abs(a - b) for a, b in zip(module.losses, expected, strict=True))
    assert error < 1e-5
    assert module.losses[-1] < module.losses[0]
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    fresh = type(model).from_pretrained(model.name_or_path, trust_remote_code=False)
    fresh.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state.items()})
    assert translate(fresh) == translate(plain)
