"""The DynamoDB stores: a table laid out as the scheduled queue, or as the orchestrator's contract beside SQS."""

from holdfast.stores.dynamodb.calling import ContractStore
from holdfast.stores.dynamodb.store import DynamoStore

__all__ = ["ContractStore", "DynamoStore"]
