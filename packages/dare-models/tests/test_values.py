"""A critic: one number per target."""

import pytest
import torch

from dare_models import ValueHead


@pytest.mark.parametrize("attention", ["full", "block_causal"])
def test_a_value_per_target(make_stock, attention):
    critic = make_stock(attention=attention)
    head = ValueHead(critic.hidden_size, dtype=torch.float64)
    ids, valid = torch.arange(16).reshape(2, 8), torch.ones(2, 8, dtype=torch.bool)
    target = torch.arange(32).reshape(2, 2, 8) % 3 == 0
    inputs = ids[:, None].masked_fill(target, critic.mask_id)
    arguments = (inputs, ids, target, ids[:, None].expand(-1, 2, -1), valid, torch.arange(8).expand(2, -1) // 4)
    assert critic.score(*arguments, gather=head).logp.abs().max() == 0  # it starts at zero
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-1, 1, critic.hidden_size))
        head.bias.fill_(0.5)
    values = critic.score(*arguments, gather=head).logp
    assert torch.equal(values != 0, target)
    if attention == "full":
        states = critic.hidden(inputs[:, 1])
        expected = (states @ head.weight + head.bias) * target[:, 1]
        assert float((values[:, 1] - expected).detach().abs().max()) < 1e-10
    values.square().sum().backward()
    assert head.weight.grad.abs().max() > 0
    assert critic.module.model.embed_tokens.weight.grad.abs().max() > 0


def test_what_is_no_value_is_refused():
    head, hidden, weight = ValueHead(4), torch.ones(2, 4), torch.ones(7, 4)
    with pytest.raises(ValueError, match=r"`labels` \[N\] and want=\(\)"):
        head(hidden, weight, torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"got \[2\] and \('entropy',\)"):
        head(hidden, weight, torch.zeros(2, dtype=torch.int64), want=("entropy",))
