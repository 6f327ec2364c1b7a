"""Places where shards live; `register` adds one of your own."""

from localpower.engines.base import Engine
from localpower.engines.cluster import ClusterEngine
from localpower.engines.registry import register
from localpower.worker.host import Failure, ShardHost

__all__ = ["ClusterEngine", "Engine", "Failure", "ShardHost", "register"]
