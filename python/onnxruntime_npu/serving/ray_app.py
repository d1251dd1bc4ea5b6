"""Replicas of the service on a cluster: ``serve run onnxruntime_npu.serving.ray_app:build``.

Each replica is the whole service of ``onnxruntime-npu serve``, application and engine, on a device
of its own. Ray sends it requests, adds and removes replicas, and replaces those that fail.
"""

# Annotations are not postponed: Ray reads that of `build` to make arguments of a dictionary.

from typing import Any

import ray
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve
from ray.serve.config import AutoscalingConfig

from ..errors import ServingError
from ..session.provider_library import get_ep_name
from .asgi import create_app
from .settings import Settings

_NPU = "NPU"  # the resource by which Ray knows NPUs
_HEALTH_CHECK_SECONDS = 5.0


class Arguments(BaseModel):
    """What ``build`` takes, from ``serve run`` or a Serve configuration file."""

    model_config = ConfigDict(extra="forbid")

    directory: str  # what ``export --cache paged`` wrote, at this path on every node
    name: str | None = None  # of the model, for clients; default: the directory's
    provider: str = get_ep_name()
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(1, ge=1)
    # Running and waiting requests of a replica, on average, that Ray adds and removes replicas for.
    target_requests: float = Field(64.0, gt=0)
    # Requests that a replica is sent at once; more wait in Ray's proxy, up to max_queue.
    max_requests: int = Field(128, ge=1)
    max_queue: int = Field(256, ge=0)
    deadline: float = Field(Settings.deadline, gt=0, lt=1e6)
    max_body: int = Field(Settings.max_body, ge=0)
    cpus: float = Field(1.0, ge=0)  # that Ray reserves for a replica

    @model_validator(mode="after")
    def _replicas_in_order(self) -> "Arguments":
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas expected at least min_replicas, {self.min_replicas}, got "
                f"{self.max_replicas}"
            )
        return self


def build(arguments: Arguments) -> serve.Application:
    """Return the application for ``serve.run``.

    With the NPU as provider each replica takes one of the resource NPU, and runs on the device
    that Ray gives it. The environment variable ORT_NPU_API_KEY of the replicas is their API key.
    """
    options = {
        "provider": arguments.provider,
        "model_name": arguments.name,
        "max_queue": arguments.max_queue,
        "deadline": arguments.deadline,
        "max_body": arguments.max_body,
    }
    directory = arguments.directory
    on_npu = arguments.provider == get_ep_name()

    def application() -> FastAPI:
        return create_app(directory, **options, device=_device())

    deployment: Any = serve.deployment(
        serve.ingress(application)(Replica),
        name="onnxruntime-npu",
        ray_actor_options={
            "num_cpus": arguments.cpus,
            "resources": {_NPU: 1} if on_npu else {},
        },
        autoscaling_config=AutoscalingConfig(
            min_replicas=arguments.min_replicas,
            max_replicas=arguments.max_replicas,
            target_ongoing_requests=arguments.target_requests,
        ),
        max_ongoing_requests=arguments.max_requests,
        max_queued_requests=arguments.max_queue,
        health_check_period_s=_HEALTH_CHECK_SECONDS,
        # A replica that is removed ends its requests first.
        graceful_shutdown_timeout_s=arguments.deadline,
    )
    return deployment.bind()


class Replica:
    """One service; Ray replaces it when its engine does not start."""

    app: FastAPI  # of the class that Ray makes of this one

    async def check_health(self) -> None:
        """Raise ServingError if the engine has failed before it was ready."""
        if reasons := self.app.state.unusable:
            raise ServingError(reasons[0])


def _device() -> int:
    """Return the index of the NPU that Ray has given to this replica; 0 if it has given none."""
    given = ray.get_runtime_context().get_accelerator_ids().get(_NPU, [])
    return int(given[0]) if given else 0
