"""PPO of stable-baselines3: its policy acts without gradients between the steps."""

import gymnasium
import numpy
import torch
from stable_baselines3 import PPO


class Line(gymnasium.Env):
    """Walk to the right."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action):
        self.at += 1 if action else -1
        return numpy.full(1, self.at, numpy.float32), float(self.at), abs(self.at) > 5, False, {}


if __name__ == "__main__":
    learner = PPO("MlpPolicy", Line(), n_steps=8, batch_size=4, n_epochs=2, seed=0, device="cpu")
    learner.learn(16)
    torch.save(learner.policy.state_dict(), "model.pth")
